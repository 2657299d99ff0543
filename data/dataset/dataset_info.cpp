#include "data/dataset/dataset_info.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {
namespace {

/// Lists the keys in one place, for reading and writing.
template <class Info, class Visit>
void for_each_key(Info& info, Visit&& visit) {
  visit("tokenizer_checksum", info.tokenizer_checksum);
  visit("vocab_size", info.vocab_size);
  visit("eod", info.eod);
  visit("append_eod", info.append_eod);
  visit("documents", info.documents);
  visit("tokens", info.tokens);
  visit("source_bytes", info.source_bytes);
  visit("source_words", info.source_words);
  visit("targets", info.targets);
}

}  // namespace

Path info_path(const Path& prefix) {
  Path path = prefix;
  path += ".json";
  return path;
}

Path loss_mask_prefix(const Path& prefix) {
  return prefix.string() + "_loss_mask";
}

bool has_loss_mask(const Path& prefix) {
  const std::optional<DatasetInfo> info = read_dataset_info(prefix);
  const Path mask = idx_path(loss_mask_prefix(prefix));
  check_input(info || !stored_file_exists(mask), info_path(prefix).string(), ": is missing, but ", mask.string(),
              " exists; copy the .json file too, or remove the loss mask");
  return info && info->has_loss_mask();
}

std::string info_to_json(const DatasetInfo& info) {
  nlohmann::ordered_json json;
  for_each_key(info, [&](const char* key, const auto& value) { json[key] = value; });
  if (!info.has_loss_mask()) json.erase("targets");
  return json.dump(2) + "\n";
}

DatasetInfo info_from_json(const std::string& text, const Path& file) {
  DatasetInfo info;
  try {
    const auto json = nlohmann::json::parse(text);
    for_each_key(info, [&](const char* key, auto& value) {
      if (key != std::string_view("targets") || json.contains(key)) json.at(key).get_to(value);
    });
  } catch (const nlohmann::json::exception& error) {
    fail(ExitCode::BadInput, file.string(), ": damaged: ", error.what(), "; preprocess the text again");
  }
  check_input(info.targets >= -1 && info.targets <= std::max<i64>(info.tokens, 0), file.string(),
              ": damaged: targets: must be at least 0 and at most the number of tokens, ", info.tokens, ", not ",
              info.targets, "; preprocess the text again");
  return info;
}

void write_dataset_info(const Path& prefix, const DatasetInfo& info) {
  write_file_atomic(info_path(prefix), info_to_json(info));
}

std::optional<DatasetInfo> read_dataset_info(const Path& prefix) {
  const Path path = info_path(prefix);
  std::error_code unknown;  // a dangling link exists, so that reading it fails instead of being skipped
  const bool exists = is_s3_path(path) ? stored_file_exists(path)
                                       : std::filesystem::exists(std::filesystem::symlink_status(path, unknown));
  if (!exists) return std::nullopt;
  return info_from_json(read_stored_text(path), path);
}

double mean_document_tokens(std::span<const std::string> prefixes, std::span<const double> weights) {
  double sum = 0, all = 0;
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const std::optional<DatasetInfo> info = read_dataset_info(prefixes[i]);
    if (!info || info->documents <= 0) return 0;
    const auto tokens = static_cast<double>(info->tokens);
    const double weight = weights.empty() ? tokens : weights[i];
    sum += weight * tokens / static_cast<double>(info->documents);
    all += weight;
  }
  return all > 0 ? sum / all : 0;
}

namespace {

constexpr i64 kBlocks = 256, kBlockBytes = i64{1} << 14;

std::string sampled_checksum(const TokenFile& file) {
  std::vector<std::byte> buffer;
  const auto bytes = static_cast<i64>(file.size());
  if (bytes <= kBlocks * kBlockBytes) return checksum_hex(file.read(0, file.size(), buffer));
  std::vector<i64> offsets;
  const i64 last = bytes - kBlockBytes, steps = kBlocks - 1;
  for (i64 i = 0; i < kBlocks; ++i) {
    // Quotient and remainder are scaled separately so that the product cannot overflow.
    offsets.push_back(last / steps * i + last % steps * i / steps);
  }
  return checksum_hex(file.sample(offsets, kBlockBytes));
}

std::string identity_of_files(const Path& prefix) {
  const Path idx_copy = local_copy(idx_path(prefix));
  ObjectConnections connections;
  const TokenFile idx(idx_copy, connections), bin(bin_path(prefix), connections);
  const IndexHeader header = read_index_header(MappedFile(idx_copy));
  const u64 tokens = bin.size() / static_cast<u64>(token_bytes(header.type));
  return str(header.sequences, " sequences, ", header.document_entries - 1, " documents, ", tokens, " tokens, .idx ",
             sampled_checksum(idx), ", .bin ", sampled_checksum(bin));
}

}  // namespace

std::string dataset_identity(const Path& prefix) {
  const std::string tokens = identity_of_files(prefix);
  return has_loss_mask(prefix) ? str(tokens, ", loss mask: ", identity_of_files(loss_mask_prefix(prefix))) : tokens;
}

}  // namespace mcpp
