// Shards of a training state, i.e. the named parts of global tensors that its checkpoints contain.
#pragma once
#include <map>
#include <vector>

#include "checkpoint/format/shard.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Names of PowerSGD states, in the same form as names of optimizer states: "<state>_<index>_of_<count>".
inline constexpr const char* kPowerSgdError = "power_sgd_error";
inline constexpr const char* kPowerSgdFactor = "power_sgd_factor";
/// Name of the state with the largest magnitudes of past steps: "optimizer/amax_history/<linear layer>".
inline constexpr const char* kAmaxHistory = "amax_history";

/// Returns all weights, optimizer state and gradient compression state that this rank updates. The data are views, so
/// reading into them loads the training state.
std::vector<NamedShard> shards_to_load(const TrainingState& state);

/// Part of the replicated data that this rank represents, chosen so that each element of the model counts exactly once.
class PrimaryShard {
 public:
  explicit PrimaryShard(const TrainingState& state);
  /// Returns the part of `param` that this rank represents. `count` is the number of elements of `param` in
  /// visit_weights() or, after backward(), in visit_grads().
  Part of(const Param& param, i64 count) const;

 private:
  const TrainingState& state_;
  std::map<const Param*, const Communicator*> replicas_;
};

/// Returns the shards that this rank writes. Each element is written once, by one of its replicas.
std::vector<NamedShard> shards_to_save(const TrainingState& state);

}  // namespace mcpp
