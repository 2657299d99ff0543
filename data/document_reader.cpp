#include "data/document_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/utf8.h"

namespace mcpp {
namespace {

/// Calls visit(line without its end, line number) for each line.
template <class Visit>
void for_each_line(const TextPiece& piece, Visit&& visit) {
  std::string_view text = piece.text;
  for (i64 number = piece.first_line; !text.empty(); ++number) {
    const std::size_t newline = text.find('\n');
    visit(text.substr(0, newline), number);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
}

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void fix_utf8(const Path& path, TextPiece& piece, InvalidUtf8 policy) {
  const i64 bad = find_invalid_utf8(piece.text);
  if (bad < 0) return;
  const auto line = piece.first_line + std::count(piece.text.begin(), piece.text.begin() + bad, '\n');
  check_input(policy == InvalidUtf8::Replace, path.string(), ":", line, ": not UTF-8 at byte ", piece.byte_offset + bad,
              " of the file; convert it (for example with iconv), or replace such bytes with --invalid_utf8=replace");
  piece.text = replace_invalid_utf8(piece.text);
}

/// The values of the keys in one line; `problem` says why there are none.
std::vector<std::string> parse_json_line(std::string_view line, const std::vector<std::string>& keys,
                                         std::string& problem) {
  std::vector<std::string> values;
  try {
    nlohmann::json object = nlohmann::json::parse(line);
    if (!object.is_object()) problem = "not a JSON object; each line must be one";
    for (const std::string& key : keys) {
      if (!problem.empty()) break;
      const auto found = object.find(key);
      if (found == object.end()) {
        problem = str("has no key \"", key, "\"");
      } else if (!found->is_string()) {
        problem = str("\"", key, "\" is not a string");
      } else {
        values.push_back(std::move(found->get_ref<std::string&>()));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    problem = str("malformed JSON: ", error.what());
  }
  return values;
}

void parse_json(const Path& path, const TextPiece& piece, const DocumentFormat& format, PieceDocuments& documents) {
  for_each_line(piece, [&](std::string_view line, i64 number) {
    if (is_blank(line)) return;
    std::string problem;
    std::vector<std::string> values = parse_json_line(line, format.json_keys, problem);
    if (!problem.empty()) {
      check_input(format.skip_malformed, path.string(), ":", number, ": ", problem,
                  "; mend the line, or leave such lines out with --skip_malformed");
      ++documents.malformed;
      return;
    }
    for (std::size_t k = 0; k < values.size(); ++k) documents.by_key[k].push_back({std::move(values[k]), true});
  });
}

/// Lines between blank lines. A piece cut inside a paragraph ends in an open segment, which the next piece continues.
void parse_paragraphs(const TextPiece& piece, std::vector<Segment>& segments) {
  std::string paragraph;
  const auto finish = [&] {
    while (paragraph.ends_with('\n') || paragraph.ends_with('\r')) paragraph.pop_back();
    if (!paragraph.empty()) segments.push_back({std::move(paragraph), true});
    paragraph.clear();
  };
  for_each_line(piece, [&](std::string_view line, i64) {
    if (is_blank(line)) return finish();
    paragraph.append(line).push_back('\n');
  });
  if (piece.ends_document) return finish();
  if (!piece.text.ends_with('\n')) paragraph.pop_back();
  segments.push_back({std::move(paragraph), false});
}

}  // namespace

bool is_json_file(const Path& path) {
  const Path name = path.extension() == ".gz" ? path.stem() : path.filename();
  return name.extension() == ".jsonl" || name.extension() == ".json";
}

Cut cut_for(const Path& path, const DocumentFormat& format) {
  if (is_json_file(path) || format.text_document == TextDocument::Line) return Cut::Line;
  return format.text_document == TextDocument::File ? Cut::Anywhere : Cut::Paragraph;
}

PieceDocuments parse_piece(const Path& path, TextPiece piece, const DocumentFormat& format) {
  fix_utf8(path, piece, format.invalid_utf8);
  PieceDocuments documents;
  documents.by_key.resize(is_json_file(path) ? format.json_keys.size() : 1);
  if (is_json_file(path)) {
    parse_json(path, piece, format, documents);
  } else if (format.text_document == TextDocument::File) {
    documents.by_key[0].push_back({std::move(piece.text), piece.ends_document});
  } else if (format.text_document == TextDocument::Line) {
    for_each_line(piece, [&](std::string_view line, i64) {
      documents.by_key[0].push_back({std::string(without_return(line)), true});
    });
  } else {
    parse_paragraphs(piece, documents.by_key[0]);
  }
  return documents;
}

}  // namespace mcpp
