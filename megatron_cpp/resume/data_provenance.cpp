#include "megatron_cpp/resume/data_provenance.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "comm/object_collectives.h"
#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

constexpr char kSeparator = ';';  // separates the datasets of one key

/// Returns the dataset prefixes of each key that names datasets.
std::map<std::string, std::vector<std::string>> prefixes_by_key(const DataConfig& data) {
  std::map<std::string, std::vector<std::string>> result;
  const auto add = [&](const char* key, const std::vector<std::string>& entries) {
    if (!entries.empty()) result[key] = parse_blend_list(entries, key).prefixes;
  };
  add("data.data_path", data.data_path);
  add("data.train_data_path", data.train_data_path);
  add("data.valid_data_path", data.valid_data_path);
  add("data.test_data_path", data.test_data_path);
  return result;
}

std::string name_in_checkpoint(const std::string& key) {
  return "datasets of " + key;
}

}  // namespace

DatasetIdentities identify_datasets(const Config& config, Communicator& world) {
  DatasetIdentities identities;
  std::string lines;
  run_on_all_ranks(world, [&] {
    for (const auto& [key, prefixes] : prefixes_by_key(config.data)) {
      std::vector<std::string> dataset_identities;
      for (const std::string& prefix : prefixes) {
        dataset_identities.push_back(dataset_identity(prefix));
        lines += str(prefix, ": ", dataset_identities.back(), "\n");
      }
      identities[key] = join(dataset_identities, std::string(1, kSeparator));
    }
    return std::string();
  });
  check_identical_on_ranks("dataset", lines, world, "all machines must read the same files; copy them again");
  return identities;
}

void store_sources(const DataProvenance& sources, RunState& run) {
  run.tokenizer_checksum = sources.tokenizer_checksum;
  for (const auto& [key, identities] : sources.datasets) run.extra[name_in_checkpoint(key)] = identities;
}

Config with_moved_datasets(Config saved, const Config& config, const DatasetIdentities& now, const RunState& run) {
  const auto move = [&](const char* key, std::vector<std::string>& before, const std::vector<std::string>& after) {
    const auto stored = run.extra.find(name_in_checkpoint(key));
    const auto it = now.find(key);
    if (stored == run.extra.end() || it == now.end() || stored->second != it->second) return;
    if (parse_blend_list(before, key).weights == parse_blend_list(after, key).weights) before = after;
  };
  move("data.data_path", saved.data.data_path, config.data.data_path);
  move("data.train_data_path", saved.data.train_data_path, config.data.train_data_path);
  move("data.valid_data_path", saved.data.valid_data_path, config.data.valid_data_path);
  move("data.test_data_path", saved.data.test_data_path, config.data.test_data_path);
  return saved;
}

void check_same_datasets(const Config& config, const DatasetIdentities& now, const RunState& run,
                         const std::string& checkpoint, const Log& log) {
  const std::vector<std::string>& accepted = config.checkpoint.allow_changed_keys;
  std::vector<std::string> lines, refused;
  for (const auto& [key, prefixes] : prefixes_by_key(config.data)) {
    const auto saved = run.extra.find(name_in_checkpoint(key));
    const auto it = now.find(key);
    if (saved == run.extra.end() || it == now.end()) continue;
    const std::vector<std::string> before = split(saved->second, kSeparator), after = split(it->second, kSeparator);
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      if (before[i] == after[i]) continue;
      if (std::ranges::count(accepted, key) > 0) {
        log.warn(str("accepted: ", key, ": ", prefixes[i],
                     " has another text than the one trained on: samples are drawn anew, so that text may be read "
                     "again or skipped"));
        continue;
      }
      lines.push_back(str("\n  ", key, ": ", prefixes[i], "\n    in the checkpoint: ", before[i],
                          "\n    now:               ", after[i]));
      if (std::ranges::count(refused, key) == 0) refused.push_back(key);
    }
  }
  check_input(lines.empty(), checkpoint, ": was trained on another text than these datasets have now:", join(lines, ""),
              "\nPut the old files back, or accept the change with --checkpoint.allow_changed_keys=",
              join(refused, ","), ", or start anew from the weights with --checkpoint.finetune");
}

}  // namespace mcpp
