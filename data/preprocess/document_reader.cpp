#include "data/preprocess/document_reader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "data/preprocess/input_format.h"

namespace mcpp {
namespace {

/// Calls visit(line without its line end, line number) for each line.
template <class Visit>
void for_each_line(std::string_view text, i64 first_line, Visit&& visit) {
  for (i64 number = first_line; !text.empty(); ++number) {
    const std::size_t newline = text.find('\n');
    visit(text.substr(0, newline), number);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
}

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void fix_utf8(const Path& path, TextChunk& chunk, InvalidUtf8 policy) {
  const i64 invalid_byte = find_invalid_utf8(chunk.text);
  if (invalid_byte < 0) return;
  const auto line = chunk.first_line + std::count(chunk.text.begin(), chunk.text.begin() + invalid_byte, '\n');
  check_input(policy == InvalidUtf8::Replace, path.string(), ":", line, ": not UTF-8 at byte ",
              chunk.byte_offset + invalid_byte,
              " of the file; convert it (for example with iconv), or replace such bytes with --invalid_utf8=replace");
  chunk.text = replace_invalid_utf8(chunk.text);
}

void parse_json(const Path& path, TextChunk chunk, const DocumentFormat& format, ChunkDocuments& documents) {
  for_each_json_line(path, std::move(chunk), format, documents.malformed,
                     [&](std::string_view line, std::string& problem) {
                       std::vector<std::string> values = read_string_members(line, format.json_keys, problem);
                       if (!problem.empty()) return;
                       for (std::size_t k = 0; k < values.size(); ++k)
                         documents.by_key[k].push_back({.text = std::move(values[k])});
                     });
}

/// Parses paragraphs, which are separated by blank lines. A chunk split inside a paragraph ends in an open segment
/// without the end of its last line; the next chunk starts with the segment that continues it.
void parse_paragraphs(const TextChunk& chunk, std::vector<Segment>& segments) {
  std::string paragraph;
  bool is_open = !chunk.begins_document;
  bool needs_newline = is_open && chunk.begins_line;  // true if a line end must precede the next line
  std::string_view before = chunk.text_before;
  if (before.ends_with('\n')) before.remove_suffix(1);  // starts the segment
  const auto add = [&](std::string text, bool ends_document) {
    const bool is_first = segments.empty() && !chunk.begins_document;
    segments.push_back({std::move(text), ends_document, !is_first, std::string(is_first ? before : "")});
  };
  const auto finish = [&] {
    while (paragraph.ends_with('\r')) paragraph.pop_back();
    if (!paragraph.empty() || is_open) add(std::exchange(paragraph, {}), true);
    is_open = needs_newline = false;
  };
  const auto append = [&](std::string_view line) {
    if (std::exchange(needs_newline, true)) paragraph.push_back('\n');
    paragraph.append(line);
  };
  const std::string_view text = chunk.text;
  const std::size_t whole_lines = chunk.ends_document ? text.size() : text.rfind('\n') + 1;  // npos + 1 is 0
  for_each_line(text.substr(0, whole_lines), chunk.first_line, [&](std::string_view line, i64 number) {
    const bool is_rest = number == chunk.first_line && !chunk.begins_line;
    if (is_blank(line) && !is_rest) return finish();
    append(line);
  });
  if (chunk.ends_document) return finish();
  if (whole_lines < text.size()) append(text.substr(whole_lines));
  add(std::move(paragraph), false);
}

}  // namespace

void for_each_json_line(const Path& path, TextChunk chunk, const DocumentFormat& format, i64& malformed,
                        const std::function<void(std::string_view line, std::string& problem)>& parse) {
  fix_utf8(path, chunk, format.invalid_utf8);
  for_each_line(chunk.text, chunk.first_line, [&](std::string_view line, i64 number) {
    if (is_blank(line)) return;
    std::string problem;
    parse(line, problem);
    if (problem.empty()) return;
    check_input(format.skip_malformed, path.string(), ":", number, ": ", problem,
                "; fix the line, skip such lines with --skip_malformed, or read the file as text with "
                "--input_format=text");
    ++malformed;
  });
}

SplitMode split_mode_for(bool is_json_lines, const DocumentFormat& format) {
  if (is_json_lines || format.text_document == TextDocument::Line) return SplitMode::Line;
  return format.text_document == TextDocument::File ? SplitMode::Anywhere : SplitMode::Paragraph;
}

namespace {

/// Fails if a pipe, whose content was unknown when the format was chosen, looks like JSON lines.
void check_not_json_lines(const Path& path, const TextChunk& chunk, const DocumentFormat& format) {
  const bool is_guess = format.input_format == InputFormat::Auto && !chunk.is_json_lines && chunk.byte_offset == 0;
  check_input(
      !is_guess || !looks_like_json_lines(chunk.text), path.string(),
      ": looks like JSON lines; pass --input_format=json_lines, or --input_format=text to read it as plain text");
}

}  // namespace

ChunkDocuments parse_chunk(const Path& path, TextChunk chunk, const DocumentFormat& format) {
  ChunkDocuments documents;
  documents.by_key.resize(chunk.is_json_lines ? format.json_keys.size() : 1);
  if (chunk.is_json_lines) {
    parse_json(path, std::move(chunk), format, documents);
    return documents;
  }
  fix_utf8(path, chunk, format.invalid_utf8);
  check_not_json_lines(path, chunk, format);
  if (format.text_document == TextDocument::File) {
    documents.by_key[0].push_back(
        {std::move(chunk.text), chunk.ends_document, chunk.begins_document, std::move(chunk.text_before)});
  } else if (format.text_document == TextDocument::Line) {
    for_each_line(chunk.text, chunk.first_line, [&](std::string_view line, i64) {
      documents.by_key[0].push_back({.text = std::string(without_return(line))});
    });
  } else {
    parse_paragraphs(chunk, documents.by_key[0]);
  }
  return documents;
}

}  // namespace mcpp
