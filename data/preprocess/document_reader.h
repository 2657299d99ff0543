// Extraction of document texts from input files: plain text or JSON lines, optionally compressed with gzip or zstd.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/file.h"
#include "data/preprocess/input_format.h"
#include "data/preprocess/text_source.h"

namespace mcpp {

/// Unit of a plain-text file that forms a document.
enum class TextDocument { File, Line, Paragraph };
template <>
struct EnumNames<TextDocument> {
  static constexpr std::array<std::string_view, 3> value{"file", "line", "paragraph"};
};

/// Handling of bytes that are not valid UTF-8.
enum class InvalidUtf8 { Error, Replace };
template <>
struct EnumNames<InvalidUtf8> {
  static constexpr std::array<std::string_view, 2> value{"error", "replace"};
};

struct DocumentFormat {
  std::vector<std::string> json_keys{"text"};
  TextDocument text_document = TextDocument::File;
  InvalidUtf8 invalid_utf8 = InvalidUtf8::Error;
  bool skip_malformed = false;  ///< count unusable JSON lines instead of failing
  InputFormat input_format = InputFormat::Auto;
};

/// Returns the mode in which TextSource must split a file. `is_json_lines` is the result of is_json_lines().
SplitMode split_mode_for(bool is_json_lines, const DocumentFormat& format);

/// Part of a document. The next segment of the same key continues it unless `ends_document`.
struct Segment {
  std::string text;
  bool ends_document = true;
  bool begins_document = true;
  std::string text_before = {};  ///< end of the document's preceding text; empty if the segment begins it
};

struct ChunkDocuments {
  std::vector<std::vector<Segment>> by_key;  ///< a single list for plain text
  i64 malformed = 0;                         ///< number of skipped JSON lines
};

/// Calls parse(line, problem) for each JSON line of a chunk. If it sets `problem`, counts the line in `malformed`, or
/// throws BadInput with file:line unless `format` skips such lines. Also throws BadInput for invalid UTF-8.
void for_each_json_line(const Path& path, TextChunk chunk, const DocumentFormat& format, i64& malformed,
                        const std::function<void(std::string_view line, std::string& problem)>& parse);

/// Parses the documents of one chunk of `path`. Throws BadInput with file:line for malformed JSON, missing keys and
/// invalid UTF-8.
ChunkDocuments parse_chunk(const Path& path, TextChunk chunk, const DocumentFormat& format);

}  // namespace mcpp
