// Text files, packed or not, in pieces of bounded size cut where text may be cut.
#pragma once
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "data/prepare/input_stream.h"

namespace mcpp {

/// Where a piece may end.
enum class Cut {
  Anywhere,   ///< after a line if there is one, else before a space, else between two characters
  Line,       ///< after a line, however long (up to 1 GiB)
  Paragraph,  ///< after a blank line if there is one, else after a line; too long a line is cut as Anywhere
};

struct TextPiece {
  std::string text;
  i64 byte_offset = 0;          ///< of the text within the (uncompressed) file
  i64 first_line = 1;           ///< its line number there
  bool ends_document = true;    ///< false when cut inside what should stay together: file or paragraph
  bool begins_document = true;  ///< false when the piece before did not end one
  bool begins_line = true;      ///< false when the piece before was cut inside a line
  std::string text_before;      ///< last characters of the piece before; empty if the piece begins a document
  bool is_json_lines = false;   ///< set by the caller of next()
};

/// A part of a file that is not packed, from one cut to another, and what is known there of the text around it.
struct TextRange {
  i64 begin = 0, end = std::numeric_limits<i64>::max();  ///< bytes of the file
  i64 first_line = 1;                                    ///< the number of the line at `begin`
  bool begins_document = true, begins_line = true;       ///< as TextPiece, of the first piece
  bool ends_document = true;                             ///< of the last
};

/// Where a text is cut that is longer than a piece may be.
struct PieceEnd {
  std::size_t size = 0;  ///< of the piece; never 0
  bool ends_document = false;
};
/// `text` is as much as a piece may have; not for Cut::Line. `begins_line`: the text does.
PieceEnd end_of_piece(std::string_view text, Cut cut, bool begins_line);
/// Just after the last blank line of `text` that text follows, or npos. At the very end nothing counts: what follows
/// may be blank too, and belongs to the same gap.
std::size_t after_blank_line(std::string_view text);

class TextSource {
 public:
  /// BadInput when it cannot be opened. gzip and zstd are recognised by content.
  explicit TextSource(const Path& path, const TextRange& range = {});

  /// The next piece of about `target_bytes`, false after the last. The pieces together are the file; how it is cut
  /// depends on its content alone. BadInput for what cannot be read, and for a packed file that grows without measure.
  bool next(TextPiece& piece, std::size_t target_bytes, Cut cut);

  const Path& path() const { return path_; }
  u64 bytes_consumed() const { return file_.bytes_consumed(); }  ///< of the file on disk, for progress

 private:
  void fill(std::size_t bytes);
  void read_text_before();

  Path path_;
  InputStream file_;
  TextRange range_;
  std::string buffer_, text_before_;
  bool at_end_ = false;
  i64 byte_offset_, line_;
  std::optional<i64> size_on_disk_;     // none when it is no regular file: a pipe has no size
  bool begins_document_, begins_line_;  // the next piece
};

/// Nothing but spaces, tabs and a carriage return.
bool is_blank(std::string_view line);
/// Whitespace-separated words.
i64 count_words(std::string_view text);

}  // namespace mcpp
