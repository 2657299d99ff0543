#include "megatron_cpp/resume/power_sgd_memory.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "megatron_cpp/step/training_shards.h"
#include "tensor/ops/low_rank.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Rank that saved an error, and the number of such ranks, as encoded in tensor names.
struct ErrorName {
  int rank = 0, ranks = 0;
  std::string param;

  std::string tensor() const { return optimizer_tensor(str(kPowerSgdError, "_", rank, "_of_", ranks), param); }
};

/// Removes `prefix` and a number from the front of the text.
bool take(std::string_view& text, std::string_view prefix, int& number) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<ErrorName> error_name(std::string_view tensor) {
  ErrorName name;
  const bool is_error = take(tensor, str("optimizer/", kPowerSgdError, "_"), name.rank) &&
                        take(tensor, "_of_", name.ranks) && tensor.starts_with('/') && name.ranks > 0;
  if (!is_error) return std::nullopt;
  name.param = tensor.substr(1);
  return name;
}

bool is_of_power_sgd(std::string_view tensor) {
  return tensor.starts_with(str("optimizer/", kPowerSgdError, "_")) ||
         tensor.starts_with(str("optimizer/", kPowerSgdFactor, "_"));
}

/// Returns how many ranks saved errors of each parameter.
std::map<std::string, int, std::less<>> count_savers(const CheckpointReader& reader) {
  std::map<std::string, int, std::less<>> savers;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (const auto name = error_name(tensor.name)) savers[name->param] = name->ranks;
  }
  return savers;
}

}  // namespace

std::vector<NamedShard> extract_unsaved(std::vector<NamedShard>& shards, const CheckpointReader& reader) {
  const auto is_saved = [&](const NamedShard& shard) {
    const TensorEntry* entry = is_of_power_sgd(shard.name) ? reader.manifest().find(shard.name) : nullptr;
    return !is_of_power_sgd(shard.name) || (entry && entry->global == shard.box.global);
  };
  const auto first = std::stable_partition(shards.begin(), shards.end(), is_saved);
  std::vector<NamedShard> unsaved(std::make_move_iterator(first), std::make_move_iterator(shards.end()));
  shards.erase(first, shards.end());
  for (NamedShard& shard : unsaved) {
    ops::fill_zero(shard.data);
    if (!error_name(shard.name)) ops::orthonormalize(shard.data);
  }
  return unsaved;
}

std::optional<Damage> load_redistributed_errors(std::vector<NamedShard>& unsaved, CheckpointReader& reader,
                                                const LoadingRanks& ranks) {
  const auto savers = count_savers(reader);
  int rounds = 0;  // identical on all ranks
  for (const auto& [param, count] : savers) rounds = std::max(rounds, count);
  for (int round = 0; round < rounds; ++round) {
    std::vector<NamedShard> stored_errors;
    std::vector<Tensor> sums;
    for (const NamedShard& shard : unsaved) {
      std::optional<ErrorName> name = error_name(shard.name);
      const auto saved = name ? savers.find(name->param) : savers.end();
      if (saved == savers.end()) continue;
      name->rank += round * name->ranks;
      name->ranks = saved->second;
      if (name->rank >= name->ranks) continue;
      Tensor part = Tensor::like(shard.data);
      stored_errors.emplace_back(name->tensor(), shard.box, part);
      sums.push_back(shard.data);
    }
    if (auto damage = reader.load(stored_errors, ranks)) return damage;
    for (std::size_t i = 0; i < sums.size(); ++i) ops::add_to(stored_errors[i].data, sums[i]);
  }
  return std::nullopt;
}

}  // namespace mcpp
