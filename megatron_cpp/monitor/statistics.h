// Optional statistics of weights, gradients and activations, which cost a pass over all of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/step/value_stats.h"

namespace mcpp {

/// Statistics of one step, identical on all ranks.
struct StepStatistics {
  std::optional<double> params_norm;  ///< norm of the weights after the step
  std::optional<double> num_zeros;    ///< zeros in the gradient
  struct Layer {
    std::string name;
    double grad_norm = 0;  ///< before clipping; the norms of all layers combine to the global norm
    double params_norm = 0;
    std::optional<double> activation_rms,
        activation_max;  ///< of the layer's output in the residual stream; only for transformer layers
  };
  std::vector<Layer> layers = {};            ///< in model order
  StatsByName weights = {}, gradients = {};  ///< by parameter, with buckets; for histograms
};

/// Collects statistics at the iterations that the configuration selects. Collective.
class StatisticsCollector {
 public:
  /// `should_log(iteration)` returns true if a log line or a metrics record is written for the iteration.
  StatisticsCollector(StoredRef<LoggingConfig> config, TrainingState& state, Communicator& world,
                      std::function<bool(i64 iteration)> should_log)
      : config_(config), state_(state), world_(world), should_log_(std::move(should_log)) {}

  /// Must be called before and after TrainingState::backward() of the iteration.
  void before_backward(i64 iteration);
  void after_backward();
  /// Returns the statistics of the gradients; call it between backward() and update().
  StepStatistics gradient_statistics(i64 iteration) const;
  /// Adds those of the weights after the update. `grad_norm` is the global gradient norm of the step.
  void add_weights(i64 iteration, double grad_norm, StepStatistics& step) const;

 private:
  bool is_due(i64 interval, i64 iteration) const { return interval > 0 && iteration % interval == 0; }
  bool needs_layers(i64 iteration) const { return is_due(config_.log_layer_statistics_interval, iteration); }
  bool needs_histograms(i64 iteration) const { return is_due(config_.tensorboard_histogram_interval, iteration); }

  const LoggingConfig& config_;
  TrainingState& state_;
  Communicator& world_;
  std::function<bool(i64)> should_log_;
  StatsByName activations_;  // of this rank
};

/// Formats the statistics by layer as a table for the log.
std::string layer_table(const StepStatistics& step);

}  // namespace mcpp
