// A training as named pieces of global tensors: what its checkpoints hold.
#pragma once
#include <map>
#include <vector>

#include "checkpoint/format/shard.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// States of PowerSGD in the optimizer's: "<state>_<number>_of_<all>".
inline constexpr const char* kPowerSgdError = "power_sgd_error";
inline constexpr const char* kPowerSgdFactor = "power_sgd_factor";

/// All of weights and optimizer state that this rank updates, and what it remembers of gradients. The data are views,
/// so reading into them loads the training.
std::vector<NamedShard> shards_to_load(const TrainingState& state);

/// Which of what the ranks hold alike this one stands for, so that each number of the model counts once.
class OwnShare {
 public:
  explicit OwnShare(const TrainingState& state);
  /// Of `count` elements that visit_weights() or, after backward(), visit_grads() gives of the parameter.
  Part of(const Param& param, i64 count) const;

 private:
  const TrainingState& state_;
  std::map<const Param*, const Communicator*> replicas_;
};

/// What this rank writes of them, so that each number is written once: ranks that hold the same share the work.
std::vector<NamedShard> shards_to_save(const TrainingState& state);

}  // namespace mcpp
