#include "data/prepare/document_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/text/utf8.h"

namespace mcpp {
namespace {

/// Calls visit(line without its end, line number) for each line.
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

void fix_utf8(const Path& path, TextPiece& piece, InvalidUtf8 policy) {
  const i64 bad = find_invalid_utf8(piece.text);
  if (bad < 0) return;
  const auto line = piece.first_line + std::count(piece.text.begin(), piece.text.begin() + bad, '\n');
  check_input(policy == InvalidUtf8::Replace, path.string(), ":", line, ": not UTF-8 at byte ", piece.byte_offset + bad,
              " of the file; convert it (for example with iconv), or replace such bytes with --invalid_utf8=replace");
  piece.text = replace_invalid_utf8(piece.text);
}

/// What a parse keeps of a line: the members that are wanted, and of lists and objects only that they are there.
class WantedMembers {
 public:
  explicit WantedMembers(const std::vector<std::string>& keys) : keys_(keys) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) const {
    constexpr int kDeepest = 512;
    check_input(depth <= kDeepest, "nested deeper than ", kDeepest, " levels");
    if (event != nlohmann::json::parse_event_t::key) return depth < 2;
    return depth == 1 && std::ranges::find(keys_, parsed.get_ref<const std::string&>()) != keys_.end();
  }

 private:
  const std::vector<std::string>& keys_;
};

/// The values of the keys in one line; `problem` says why there are none.
std::vector<std::string> parse_json_line(std::string_view line, const std::vector<std::string>& keys,
                                         std::string& problem) {
  std::vector<std::string> values;
  try {
    nlohmann::json object = nlohmann::json::parse(line, WantedMembers(keys));
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
  } catch (const Error& error) {
    problem = error.what();
  }
  return values;
}

void parse_json(const Path& path, const TextPiece& piece, const DocumentFormat& format, PieceDocuments& documents) {
  for_each_line(piece.text, piece.first_line, [&](std::string_view line, i64 number) {
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

/// Lines between blank lines. A piece cut inside a paragraph ends in an open segment, without the end of its last line;
/// the next one begins with the segment that continues it.
void parse_paragraphs(const TextPiece& piece, std::vector<Segment>& segments) {
  std::string paragraph;
  bool is_open = !piece.begins_document;
  bool has_line = is_open && piece.begins_line;  // that a line end follows, once another line does
  const auto finish = [&] {
    while (paragraph.ends_with('\r')) paragraph.pop_back();
    if (!paragraph.empty() || is_open) segments.push_back({std::exchange(paragraph, {}), true});
    is_open = has_line = false;
  };
  const auto append = [&](std::string_view line) {
    if (std::exchange(has_line, true)) paragraph.push_back('\n');
    paragraph.append(line);
  };
  const std::string_view text = piece.text;
  const std::size_t whole_lines = piece.ends_document ? text.size() : text.rfind('\n') + 1;  // npos + 1 is 0
  for_each_line(text.substr(0, whole_lines), piece.first_line, [&](std::string_view line, i64 number) {
    const bool is_rest = number == piece.first_line && !piece.begins_line;
    if (is_blank(line) && !is_rest) return finish();
    append(line);
  });
  if (piece.ends_document) return finish();
  if (whole_lines < text.size()) append(text.substr(whole_lines));
  segments.push_back({std::move(paragraph), false});
}

}  // namespace

bool is_json_file(const Path& path) {
  const bool is_packed = path.extension() == ".gz" || path.extension() == ".zst";
  const Path name = is_packed ? path.stem() : path.filename();
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
    for_each_line(piece.text, piece.first_line, [&](std::string_view line, i64) {
      documents.by_key[0].push_back({std::string(without_return(line)), true});
    });
  } else {
    parse_paragraphs(piece, documents.by_key[0]);
  }
  return documents;
}

}  // namespace mcpp
