// From input files to the texts of documents: plain text or JSON lines, packed with gzip or zstd or not.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/file.h"
#include "data/prepare/input_format.h"
#include "data/prepare/text_source.h"

namespace mcpp {

/// What makes a document in a plain-text file.
enum class TextDocument { File, Line, Paragraph };
template <>
struct EnumNames<TextDocument> {
  static constexpr std::array<std::string_view, 3> value{"file", "line", "paragraph"};
};

/// What to do about bytes that are not UTF-8.
enum class InvalidUtf8 { Error, Replace };
template <>
struct EnumNames<InvalidUtf8> {
  static constexpr std::array<std::string_view, 2> value{"error", "replace"};
};

struct DocumentFormat {
  std::vector<std::string> json_keys{"text"};
  TextDocument text_document = TextDocument::File;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::Error;
  bool skip_malformed = false;  ///< count JSON lines that cannot be used instead of failing
  InputFormat input_format = InputFormat::Auto;
};

/// Returns how TextSource must cut a file. `is_json_lines`: as the function of that name decides.
Cut cut_for(bool is_json_lines, const DocumentFormat& format);

/// Part of a document. The next segment of the same key continues it unless `ends_document`.
struct Segment {
  std::string text;
  bool ends_document = true;
  bool begins_document = true;
  std::string text_before = {};  ///< end of the document's text before the segment, unless that begins the document
};

struct PieceDocuments {
  std::vector<std::vector<Segment>> by_key;  ///< one list for plain text
  i64 malformed = 0;                         ///< JSON lines left out
};

/// The documents of one piece of `path`. BadInput, as file:line, for malformed JSON, missing keys and invalid UTF-8.
PieceDocuments parse_piece(const Path& path, TextPiece piece, const DocumentFormat& format);

}  // namespace mcpp
