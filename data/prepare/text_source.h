// Text files, plain or gzip, in pieces of bounded size cut where text may be cut.
#pragma once
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
};

class TextSource {
 public:
  /// BadInput when it cannot be opened. gzip is recognised by content.
  explicit TextSource(const Path& path);

  /// The next piece of about `target_bytes`, false after the last. The pieces together are the file; how it is cut
  /// depends on its content alone. BadInput for what cannot be read, and for a gzip file that grows without measure.
  bool next(TextPiece& piece, std::size_t target_bytes, Cut cut);

  const Path& path() const { return path_; }
  u64 bytes_consumed() const { return file_.bytes_consumed(); }  ///< of the file on disk, for progress

 private:
  void fill(std::size_t bytes);

  Path path_;
  InputStream file_;
  std::string buffer_;
  bool at_end_ = false;
  i64 byte_offset_ = 0, line_ = 1;
  std::optional<i64> size_on_disk_;                   // none when it is no regular file: a pipe has no size
  bool begins_document_ = true, begins_line_ = true;  // the next piece
};

/// Nothing but spaces, tabs and a carriage return.
bool is_blank(std::string_view line);
/// Whitespace-separated words.
i64 count_words(std::string_view text);

}  // namespace mcpp
