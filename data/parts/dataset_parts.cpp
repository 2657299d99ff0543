#include "data/parts/dataset_parts.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "data/prepare/document_output.h"
#include "data/prepare/thread_pool.h"

namespace mcpp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDescription = "preprocess.json";

std::string short_name(const std::string& identity) {
  return checksum_hex(std::as_bytes(std::span(identity)));
}

Json json_of(const PartOfKey& key) {
  return {{"info", Json::parse(info_to_json(key.info))},
          {"continues", key.continues},
          {"head_ends", key.head_ends},
          {"is_open", key.is_open},
          {"head_tokens", key.head_tokens},
          {"open_tokens", key.open_tokens},
          {"empty_documents", key.empty_documents}};
}

PartOfKey part_of(const Json& json, const Path& note) {
  return {.info = info_from_json(json.at("info").dump(), note),
          .continues = json.at("continues"),
          .head_ends = json.at("head_ends"),
          .is_open = json.at("is_open"),
          .head_tokens = json.at("head_tokens"),
          .open_tokens = json.at("open_tokens"),
          .empty_documents = json.at("empty_documents")};
}

}  // namespace

PartsFolder::PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys)
    : options_(options), keys_(std::move(keys)), path_(options.output_prefix + ".parts") {}

bool PartsFolder::exists() const {
  return std::filesystem::exists(path_ / kDescription);
}

std::string PartsFolder::description(const Tokenizer& tokenizer) const {
  return Json{{"tokenizer_checksum", tokenizer.checksum()},
              {"json_keys", keys_},
              {"text_document", enum_name(options_.text_document)},
              {"append_eod", options_.append_eod},
              {"keep_empty", options_.keep_empty},
              {"skip_malformed", options_.skip_malformed},
              {"invalid_utf8", enum_name(options_.invalid_utf8)}}
             .dump(2) +
         "\n";
}

void PartsFolder::open(const Tokenizer& tokenizer) const {
  const std::string now = description(tokenizer);
  if (!exists()) {
    mcpp::create_directories(path_);
    return write_file_atomic(path_ / kDescription, now);
  }
  const std::string before = read_text_file(path_ / kDescription);
  check_input(before == now, path_.string(), ": holds parts that were made with another tokenizer or by other rules:\n",
              before, "now:\n", now, "Give the same ones again, or remove the folder to begin anew");
  for (const std::string& key : keys_) std::filesystem::remove(joined_path(key));
}

void PartsFolder::remove() const {
  std::filesystem::rename(path_, path_.string() + ".done");
  remove_leftovers();
}

void PartsFolder::remove_leftovers() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_.string() + ".done", ignored);
}

Path PartsFolder::prefix(const WorkUnit& unit, const std::string& key) const {
  return path_ / str(short_name(unit.identity()), "_", key);
}

Path PartsFolder::note_path(const WorkUnit& unit) const {
  return path_ / (short_name(unit.identity()) + ".part");
}

std::string PartsFolder::note_text(const WorkUnit& unit, const PartNote& note) const {
  Json json{{"unit", unit.identity()}, {"malformed_lines", note.malformed_lines}};
  for (std::size_t k = 0; k < keys_.size(); ++k) json["keys"][keys_[k]] = json_of(note.keys[k]);
  return json.dump(2) + "\n";
}

PartNote PartsFolder::parse_note(const WorkUnit& unit, const std::string& text) const {
  const Path path = note_path(unit);
  try {
    const Json json = Json::parse(text);
    check_input(json.at("unit") == unit.identity(), path.string(), ": is of another unit");
    PartNote note{.keys = {}, .malformed_lines = json.at("malformed_lines")};
    for (const std::string& key : keys_) note.keys.push_back(part_of(json.at("keys").at(key), path));
    return note;
  } catch (const Json::exception& error) {
    fail(ExitCode::BadInput, path.string(), ": damaged: ", error.what());
  }
}

void PartsFolder::check_part(const WorkUnit& unit, const PartNote& note) const {
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    const Path part = prefix(unit, keys_[k]);
    const DatasetInfo& info = note.keys[k].info;
    const auto bytes = static_cast<i64>(std::filesystem::file_size(bin_path(part)));
    check_input(bytes == info.tokens * token_bytes(token_type_for_vocab(info.vocab_size)), part.string(),
                ": its tokens are not all there");
    check_input(std::filesystem::exists(idx_path(part)), part.string(), ": has no .idx");
  }
}

std::optional<PartNote> PartsFolder::read_note(const WorkUnit& unit) const {
  const Path path = note_path(unit);
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const PartNote note = parse_note(unit, read_text_file(path));
    check_part(unit, note);
    return note;
  } catch (const std::filesystem::filesystem_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void PartsFolder::write_note(const WorkUnit& unit, const PartNote& note) const {
  write_file_atomic(note_path(unit), note_text(unit, note));
}

namespace {

/// The pieces of one unit.
class UnitReader {
 public:
  UnitReader(const WorkUnit& unit, const TextRange& range, const DocumentFormat& format)
      : source_(unit.path, range), cut_(cut_for(unit.path, format)), begin_(source_.bytes_consumed()) {}

  std::optional<InputFiles::Piece> next() {
    InputFiles::Piece piece{.path = source_.path(), .piece = {}, .progress = 0};
    if (!source_.next(piece.piece, kTokenisedPieceBytes, cut_)) return std::nullopt;
    piece.progress = source_.bytes_consumed() - begin_;
    return piece;
  }

 private:
  TextSource source_;
  Cut cut_;
  u64 begin_;
};

/// The tokens of one unit, which have no names yet.
struct TokenisedUnit {
  std::vector<std::unique_ptr<DocumentOutput>> outputs;  // [key]
  PartNote note;
};

TokenisedUnit tokenise_unit(const PartsFolder& folder, const WorkUnit& unit, const TextRange& range,
                            const PreprocessOptions& options, const Tokenizer& tokenizer, i64 workers,
                            const std::function<void(i64)>& progress) {
  const DocumentFormat format = options.format();
  const bool continues = !range.begins_document;
  TokenisedUnit result;
  auto& [outputs, note] = result;
  for (const std::string& key : folder.keys()) {
    outputs.push_back(std::make_unique<DocumentOutput>(folder.prefix(unit, key).string(),
                                                       DocumentRules{options.append_eod, options.keep_empty}, tokenizer,
                                                       continues));
  }
  struct Tokens {
    i64 of_head = 0, closed = 0;  // in the first document where it continues; in documents that have ended
  };
  std::vector<Tokens> tokens(outputs.size());
  UnitReader reader(unit, range, format);
  ordered_parallel(
      workers, [&] { return reader.next(); },
      [&](InputFiles::Piece raw) { return tokenise(std::move(raw), format, tokenizer); },
      [&](const TokenisedPiece& piece) {
        for (std::size_t k = 0; k < piece.by_key.size(); ++k) {
          for (const TokenSegment& segment : piece.by_key[k]) {
            const bool is_head = !result.outputs[k]->head_ended();
            result.outputs[k]->add(segment);
            if (is_head) tokens[k].of_head = result.outputs[k]->tokens();
            if (segment.ends_document) tokens[k].closed = result.outputs[k]->tokens();
          }
        }
        result.note.malformed_lines += piece.malformed;
        progress(static_cast<i64>(piece.progress));
      });
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    PartOfKey& key = note.keys.emplace_back();
    key.continues = continues;
    key.head_ends = continues && outputs[k]->head_ended();
    key.head_tokens = tokens[k].of_head;
    key.empty_documents = outputs[k]->empty_documents();
    key.is_open = outputs[k]->end_open_document();
    if (key.is_open && !(continues && !key.head_ends)) key.open_tokens = outputs[k]->tokens() - tokens[k].closed;
  }
  return result;
}

}  // namespace

std::function<PartNote()> make_part(const PartsFolder& folder, const WorkUnit& unit, const PreprocessOptions& options,
                                    const Tokenizer& tokenizer, i64 workers,
                                    const std::function<void(i64 bytes)>& progress) {
  const auto tokenised = [&](const TextRange& range) {
    return std::make_shared<TokenisedUnit>(tokenise_unit(folder, unit, range, options, tokenizer, workers, progress));
  };
  check_file_of(unit);
  std::shared_ptr<TokenisedUnit> part;
  try {
    part = tokenised(unit.range);
  } catch (const Error& error) {
    if (error.code() != ExitCode::BadInput || unit.range.begin == 0) throw;
    tokenised(with_line_number(unit.path, unit.range));  // fails again, and names the line as it is counted in the file
    throw;
  }
  check_file_of(unit);
  return [&folder, &unit, part] {
    for (std::size_t k = 0; k < part->outputs.size(); ++k) part->note.keys[k].info = part->outputs[k]->finish_tokens();
    folder.write_note(unit, part->note);
    return std::move(part->note);
  };
}

}  // namespace mcpp
