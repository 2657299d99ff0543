// Weights of a checkpoint: the weights of the model, and their exponential moving average (optimizer.ema_decay).
#pragma once
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "checkpoint/load/reader.h"

namespace mcpp {

/// Weights that a command uses.
enum class WeightSource { Model, Ema };

template <>
struct EnumNames<WeightSource> {
  static constexpr std::array<std::string_view, 2> value{"model", "ema"};
};

/// Help text of the option `weights` of commands.
inline constexpr std::string_view kWeightsHelp =
    "weights to use: those of the model, or their moving average, if it was trained with optimizer.ema_decay";

/// Returns true if the checkpoint has averaged weights.
bool has_ema(const Manifest& manifest);

/// Removes the optional shards that the checkpoint does not have in their global shape, and returns them.
std::vector<NamedShard> extract_missing(std::vector<NamedShard>& shards, const Manifest& manifest,
                                        const std::function<bool(std::string_view name)>& is_optional);

/// States that were removed from the shards to load. The caller must initialize averaged and master weights from the
/// loaded weights, and histories with zeros.
struct UnsavedStates {
  bool has_ema = false;                         ///< averaged weights
  bool has_master = false;                      ///< master weights
  std::vector<NamedShard> amax_histories = {};  ///< histories of the recipe `delayed`
};
/// Removes averaged weights and master weights from `shards`, as returned by shards_to_load(), if the checkpoint has
/// none, because it was saved without optimizer.ema_decay or with optimizer.stochastic_rounding. Also removes each
/// history of the recipe `delayed` that the checkpoint does not have in this length.
UnsavedStates remove_unsaved_states(std::vector<NamedShard>& shards, const CheckpointReader& reader);

/// Throws BadInput, naming --weights, if the checkpoint does not have these weights.
void check_has_weights(const CheckpointReader& reader, WeightSource source);

/// Returns the name of the tensor with a weight. Parameters that the optimizer does not update, such as the expert bias
/// of a router, have no average; their current value is used.
std::string weight_tensor(const Manifest& manifest, WeightSource source, std::string_view param_name);

}  // namespace mcpp
