// Text files, compressed or not, split into chunks of bounded size at suitable positions.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "data/preprocess/input_stream.h"

namespace mcpp {

/// Allowed ends of a chunk.
enum class SplitMode {
  Anywhere,   ///< after a line if possible, else before a space, else between two characters
  Line,       ///< after a line of any length up to 1 GiB
  Paragraph,  ///< after a blank line if possible, else after a line; overlong lines are split as Anywhere
};

struct TextChunk {
  std::string text;
  i64 byte_offset = 0;          ///< offset of the text in the (uncompressed) file
  i64 first_line = 1;           ///< line number of its start
  bool ends_document = true;    ///< false if split inside a file or paragraph that must stay together
  bool begins_document = true;  ///< false if the previous chunk did not end a document
  bool begins_line = true;      ///< false if the previous chunk was split inside a line
  std::string text_before;      ///< last characters of the previous chunk; empty if the chunk begins a document
  bool is_json_lines = false;   ///< set by the caller of next()
};

/// Range of an uncompressed file between two split points, with the state of the text at its ends.
struct TextRange {
  i64 begin = 0, end = std::numeric_limits<i64>::max();  ///< byte offsets in the file
  i64 first_line = 1;                                    ///< line number at `begin`
  bool begins_document = true, begins_line = true;       ///< state of the first chunk; see TextChunk
  bool ends_document = true;                             ///< state of the last chunk; see TextChunk
};

/// Split position in a text that is longer than a chunk may be.
struct ChunkEnd {
  std::size_t size = 0;  ///< size of the chunk; never 0
  bool ends_document = false;
};
/// Returns the position at which to end a chunk. `text` has the maximum length of a chunk. `begins_line`: `text` starts
/// at the start of a line. Not for SplitMode::Line.
ChunkEnd find_chunk_end(std::string_view text, SplitMode mode, bool begins_line);
/// Returns the position after the last blank line of `text` that is followed by text, or npos. A blank line at the end
/// does not count, since the following text may continue the gap with more blank lines.
std::size_t find_paragraph_start(std::string_view text);

class TextSource {
 public:
  /// Opens the file. Throws BadInput if that fails. gzip and zstd are detected by content.
  explicit TextSource(const Path& path, const TextRange& range = {});

  /// Reads the next chunk of about `target_bytes`; returns false after the last. The chunks concatenate to the file,
  /// and split points depend only on its content. Throws BadInput for read errors and for a compressed file that
  /// expands excessively.
  bool next(TextChunk& chunk, std::size_t target_bytes, SplitMode mode);

  const Path& path() const { return path_; }
  u64 bytes_consumed() const { return file_.bytes_consumed(); }  ///< bytes on disk, for progress

 private:
  void fill(std::size_t bytes);
  void read_text_before();

  Path path_;
  InputStream file_;
  TextRange range_;
  std::string buffer_, text_before_;
  bool is_at_end_ = false;
  i64 byte_offset_, line_;
  std::optional<i64> size_on_disk_;     // std::nullopt for a pipe, which has no size
  bool begins_document_, begins_line_;  // state at the start of the next chunk
};

/// Returns true if the line consists only of spaces, tabs and carriage returns.
bool is_blank(std::string_view line);
/// Returns the number of whitespace-separated words.
i64 count_words(std::string_view text);

}  // namespace mcpp
