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

PartOfKey part_of(const Json& json, const Path& prefix) {
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  check_input(info && Json::parse(info_to_json(*info)) == json.at("info"), prefix.string(), ": is damaged");
  return {.info = *info,
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

std::optional<PartNote> PartsFolder::read_note(const WorkUnit& unit) const {
  const Path path = note_path(unit);
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    check_input(json.at("unit") == unit.identity(), path.string(), ": is of another unit");
    PartNote note{.keys = {}, .malformed_lines = json.at("malformed_lines")};
    for (const std::string& key : keys_) {
      note.keys.push_back(part_of(json.at("keys").at(key), prefix(unit, key)));
      const auto bytes = static_cast<i64>(std::filesystem::file_size(bin_path(prefix(unit, key))));
      const DatasetInfo& info = note.keys.back().info;
      check_input(bytes == info.tokens * token_bytes(token_type_for_vocab(info.vocab_size)), path.string(),
                  ": its tokens are not all there");
    }
    return note;
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const std::filesystem::filesystem_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void PartsFolder::write_note(const WorkUnit& unit, const PartNote& note) const {
  Json json{{"unit", unit.identity()}, {"malformed_lines", note.malformed_lines}};
  for (std::size_t k = 0; k < keys_.size(); ++k) json["keys"][keys_[k]] = json_of(note.keys[k]);
  write_file_atomic(note_path(unit), json.dump(2) + "\n");
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

PartNote write_part(const PartsFolder& folder, const WorkUnit& unit, const TextRange& range,
                    const PreprocessOptions& options, const Tokenizer& tokenizer, i64 workers,
                    const std::function<void(i64)>& progress) {
  const DocumentFormat format = options.format();
  const bool continues = !range.begins_document;
  std::vector<std::unique_ptr<DocumentOutput>> outputs;
  for (const std::string& key : folder.keys()) {
    outputs.push_back(std::make_unique<DocumentOutput>(folder.prefix(unit, key).string(),
                                                       DocumentRules{options.append_eod, options.keep_empty}, tokenizer,
                                                       continues));
  }
  PartNote note;
  std::vector<i64> head_tokens(outputs.size(), 0), closed_tokens(outputs.size(), 0);
  UnitReader reader(unit, range, format);
  ordered_parallel(
      workers, [&] { return reader.next(); },
      [&](InputFiles::Piece raw) { return tokenise(std::move(raw), format, tokenizer); },
      [&](const TokenisedPiece& piece) {
        for (std::size_t k = 0; k < piece.by_key.size(); ++k) {
          for (const TokenSegment& segment : piece.by_key[k]) {
            const bool is_head = !outputs[k]->head_ended();
            outputs[k]->add(segment);
            if (is_head) head_tokens[k] = outputs[k]->tokens();
            if (segment.ends_document) closed_tokens[k] = outputs[k]->tokens();
          }
        }
        note.malformed_lines += piece.malformed;
        progress(static_cast<i64>(piece.progress));
      });
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    PartOfKey& key = note.keys.emplace_back();
    key.continues = continues;
    key.head_ends = continues && outputs[k]->head_ended();
    key.head_tokens = head_tokens[k];
    key.empty_documents = outputs[k]->empty_documents();
    key.is_open = outputs[k]->end_open_document();
    if (key.is_open && !(continues && !key.head_ends)) key.open_tokens = outputs[k]->tokens() - closed_tokens[k];
    key.info = outputs[k]->finish();
  }
  return note;
}

}  // namespace

void make_part(const PartsFolder& folder, const WorkUnit& unit, const PreprocessOptions& options,
               const Tokenizer& tokenizer, i64 workers, const std::function<void(i64 bytes)>& progress) {
  const auto write = [&](const TextRange& range) {
    return write_part(folder, unit, range, options, tokenizer, workers, progress);
  };
  try {
    check_file_of(unit);
    const PartNote note = write(unit.range);
    check_file_of(unit);
    folder.write_note(unit, note);
  } catch (const Error& error) {
    if (error.code() != ExitCode::BadInput || unit.range.begin == 0) throw;
    write(with_line_number(unit.path, unit.range));  // fails again, and names the line as it is counted in the file
    throw;
  }
}

}  // namespace mcpp
