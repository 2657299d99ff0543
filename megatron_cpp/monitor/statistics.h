// What is told of weights, gradients and activations on request, because it costs a look at all of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/step/value_stats.h"

namespace mcpp {

/// Of one step; on every rank the same.
struct StepStatistics {
  std::optional<double> params_norm;  ///< of the weights after the step
  std::optional<double> num_zeros;    ///< in the gradient
  struct Layer {
    std::string name;
    double grad_norm = 0;  ///< before clipping; all of them make up the norm of the whole
    double params_norm = 0;
    std::optional<double> activation_rms,
        activation_max;  ///< of the residual stream that leaves it, where it is a layer
  };
  std::vector<Layer> layers = {};            ///< in the order of the model
  StatsByName weights = {}, gradients = {};  ///< by parameter, with buckets; for histograms
};

/// Collects them, with all ranks, at the iterations that the configuration names.
class StatisticsWatch {
 public:
  /// `is_told(iteration)`: whether a line or a point of a curve is written then. All outlive this.
  StatisticsWatch(KeptRef<LoggingConfig> config, TrainingState& state, Communicator& world,
                  std::function<bool(i64 iteration)> is_told)
      : config_(config), state_(state), world_(world), is_told_(std::move(is_told)) {}

  /// Around TrainingState::backward() of the iteration.
  void before_backward(i64 iteration);
  void after_backward();
  /// What the step leaves behind it, in parts: between backward() and update() ...
  StepStatistics of_gradients(i64 iteration) const;
  /// ... and when the weights are those after the step, whose gradient had this norm.
  void add_weights(i64 iteration, double grad_norm, StepStatistics& step) const;

 private:
  bool is_due(i64 interval, i64 iteration) const { return interval > 0 && iteration % interval == 0; }
  bool wants_layers(i64 iteration) const { return is_due(config_.log_layer_statistics_interval, iteration); }
  bool wants_histograms(i64 iteration) const { return is_due(config_.tensorboard_histogram_interval, iteration); }

  const LoggingConfig& config_;
  TrainingState& state_;
  Communicator& world_;
  std::function<bool(i64)> is_told_;
  StatsByName activations_;  // of this rank
};

/// A table for the log.
std::string layer_table(const StepStatistics& step);

}  // namespace mcpp
