#include "megatron_cpp/resume/weight_source.h"

#include <algorithm>
#include <iterator>

#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/step/training_shards.h"
#include "optimizer/optimizer.h"
#include "optimizer/weight_average.h"

namespace mcpp {

namespace {

/// Returns true if the checkpoint has a state of this name.
bool has_state(const Manifest& manifest, std::string_view state) {
  const std::string prefix = optimizer_tensor(state, "");
  return std::ranges::any_of(manifest.tensors,
                             [&](const TensorEntry& tensor) { return tensor.name.starts_with(prefix); });
}

/// Removes a state that the checkpoint does not have. Returns true if any shards were removed.
bool remove_unsaved(std::string_view state, std::vector<NamedShard>& shards, const Manifest& manifest) {
  if (has_state(manifest, state)) return false;
  const std::string prefix = optimizer_tensor(state, "");
  return std::erase_if(shards, [&](const NamedShard& shard) { return shard.name.starts_with(prefix); }) > 0;
}

}  // namespace

std::vector<NamedShard> extract_missing(std::vector<NamedShard>& shards, const Manifest& manifest,
                                        const std::function<bool(std::string_view name)>& is_optional) {
  const auto is_loadable = [&](const NamedShard& shard) {
    if (!is_optional(shard.name)) return true;
    const TensorEntry* entry = manifest.find(shard.name);
    return entry && entry->global == shard.box.global;
  };
  const auto first = std::ranges::stable_partition(shards, is_loadable).begin();
  std::vector<NamedShard> missing(std::make_move_iterator(first), std::make_move_iterator(shards.end()));
  shards.erase(first, shards.end());
  return missing;
}

bool has_ema(const Manifest& manifest) {
  return has_state(manifest, kEmaState);
}

UnsavedStates remove_unsaved_states(std::vector<NamedShard>& shards, const CheckpointReader& reader) {
  const std::string histories = optimizer_tensor(kAmaxHistory, "");
  return {.has_ema = remove_unsaved(kEmaState, shards, reader.manifest()),
          .has_master = remove_unsaved(kMasterState, shards, reader.manifest()),
          .amax_histories = extract_missing(shards, reader.manifest(),
                                            [&](std::string_view name) { return name.starts_with(histories); })};
}

void check_has_weights(const CheckpointReader& reader, WeightSource source) {
  const bool is_trained = optimizer_steps_of(reader.state()).has_value();
  check_input(source == WeightSource::Model || has_ema(reader.manifest()), "--weights: ", reader.directory().string(),
              " has no averaged weights, because it ",
              is_trained ? "was trained without optimizer.ema_decay"
                         : "has only the weights of a model, as `checkpoint average` and imports save them",
              "; use --weights=model");
}

std::string weight_tensor(const Manifest& manifest, WeightSource source, std::string_view param_name) {
  std::string average = optimizer_tensor(kEmaState, param_name);
  const bool is_averaged = source == WeightSource::Ema && manifest.find(average) != nullptr;
  return is_averaged ? std::move(average) : model_tensor(param_name);
}

}  // namespace mcpp
