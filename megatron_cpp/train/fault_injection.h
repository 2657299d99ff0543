// Injection of the fault specified by section [fault_injection] of the configuration.
#pragma once
#include <functional>

#include "base/stored_ref.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/config/sections/fault_injection_config.h"

namespace mcpp {

class TrainingState;

class FaultInjection {
 public:
  FaultInjection(StoredRef<FaultInjectionConfig> config, int rank) : config_(config), rank_(rank) {}

  void before_step(i64 iteration) const;
  /// Returns the factor for the gradient of the loss in this iteration: 1, or NaN for a fault before the reduction.
  double loss_grad_factor(i64 iteration) const;
  /// Runs the passes of a step, with a flipped bit in a weight of this rank if an affected execution is due.
  void run_passes(i64 iteration, TrainingState& state, const std::function<void()>& passes);
  /// Corrupts the state; call it between TrainingState::backward() and update().
  void corrupt(i64 iteration, TrainingState& state) const;
  /// Returns the observer for the save of this iteration.
  SaveObserver observer(i64 iteration) const;

 private:
  bool is_triggered(i64 iteration) const;
  void trigger(i64 iteration) const;

  const FaultInjectionConfig& config_;
  int rank_;
  i64 executed_iteration_ = 0, executions_ = 0;  // last iteration of run_passes(), and its executions so far
};

}  // namespace mcpp
