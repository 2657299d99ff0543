#include "data/preprocess/distributed/parts_folder.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/checksum.h"
#include "data/preprocess/distributed/shared_output_file.h"

namespace mcpp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDescription = "preprocess.json";
constexpr int kVersion = 2;  ///< format version of the folder; folders without a version had one dataset per part

std::string short_name(const WorkUnit& unit) {
  const std::string identity = unit.identity();
  return checksum_hex(identity);
}

}  // namespace

PartsFolder::PartsFolder(const PreprocessOptions& options, std::vector<std::string> keys)
    : options_(options), keys_(std::move(keys)), path_(options.output_prefix + ".parts") {}

bool PartsFolder::exists() const {
  return std::filesystem::exists(path_ / kDescription);
}

std::string PartsFolder::description(const Tokenizer& tokenizer) const {
  return Json{{"version", kVersion},
              {"tokenizer_checksum", tokenizer.checksum()},
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

Path PartsFolder::tokens_path(const WorkUnit& unit, const std::string& key) const {
  return path_ / str(short_name(unit), "_", key, ".tokens");
}

Path PartsFolder::part_path(const WorkUnit& unit) const {
  return path_ / (short_name(unit) + ".part");
}

/// Checks that the token files are complete, since they could have been removed.
void PartsFolder::check_tokens(const WorkUnit& unit, const PartMetadata& metadata) const {
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    const DatasetInfo& info = metadata.keys[k].info;
    const bool has_ranges = !metadata.output_ranges.empty();
    const Path path = has_ranges ? shared_output_path(keys_[k]) : tokens_path(unit, keys_[k]);
    const i64 size = static_cast<i64>(std::filesystem::file_size(path));
    const i64 bytes = info.tokens * token_bytes(metadata.keys[k].token_type());
    if (!has_ranges) {
      check_input(size == bytes, path.string(), ": is not whole");
      continue;
    }
    const OutputRange& output_range = metadata.output_ranges[k];
    const AlignedBlockRange blocks(output_range.begin, output_range.end);
    check_input(blocks.begin == blocks.end || size >= blocks.end, path.string(), ": ends before ", blocks.end);
  }
}

std::optional<PartMetadata> PartsFolder::read_metadata(const WorkUnit& unit) const {
  if (!std::filesystem::exists(part_path(unit))) return std::nullopt;
  try {
    PartMetadata metadata = read_part(unit).metadata;
    check_tokens(unit, metadata);
    return metadata;
  } catch (const std::filesystem::filesystem_error&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

PartContent PartsFolder::read_part(const WorkUnit& unit) const {
  return mcpp::read_part(part_path(unit), unit, keys_);
}

void PartsFolder::write_part(const WorkUnit& unit, const PartContent& part) const {
  mcpp::write_part(part_path(unit), unit, keys_, part);
}

void PartsFolder::remove_tokens(const WorkUnit& unit) const {
  std::error_code ignored;
  for (const std::string& key : keys_) std::filesystem::remove(tokens_path(unit, key), ignored);
}

std::vector<std::optional<PartMetadata>> PartsFolder::retain_parts(const std::vector<WorkUnit>& units) const {
  // Lists the folder instead of testing each path: network file systems cache negative lookups.
  std::set<Path> found;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) found.insert(entry.path());
  std::vector<std::optional<PartMetadata>> all_metadata;
  std::set<Path> needed_files{path_ / kDescription};
  for (const std::string& key : keys_) needed_files.insert(shared_output_path(key));
  for (const WorkUnit& unit : units) {
    const auto& metadata =
        all_metadata.emplace_back(found.contains(part_path(unit)) ? read_metadata(unit) : std::nullopt);
    if (!metadata) continue;
    needed_files.insert(part_path(unit));
    if (!metadata->output_ranges.empty()) continue;
    for (const std::string& key : keys_) needed_files.insert(tokens_path(unit, key));
  }
  for (const Path& path : found)
    if (!needed_files.contains(path)) std::filesystem::remove(path);
  fsync_path(path_);
  return all_metadata;
}

}  // namespace mcpp
