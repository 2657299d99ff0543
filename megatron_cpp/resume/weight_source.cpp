#include "megatron_cpp/resume/weight_source.h"

#include <algorithm>

#include "megatron_cpp/resume/checkpointing.h"
#include "optimizer/weight_average.h"

namespace mcpp {

bool has_ema(const Manifest& manifest) {
  const std::string prefix = optimizer_tensor(kEmaState, "");
  return std::ranges::any_of(manifest.tensors,
                             [&](const TensorEntry& tensor) { return tensor.name.starts_with(prefix); });
}

bool remove_unsaved_ema(std::vector<NamedShard>& shards, const CheckpointReader& reader) {
  if (has_ema(reader.manifest())) return false;
  const std::string prefix = optimizer_tensor(kEmaState, "");
  return std::erase_if(shards, [&](const NamedShard& shard) { return shard.name.starts_with(prefix); }) > 0;
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
