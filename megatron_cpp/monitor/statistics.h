// Optional statistics of weights, gradients and activations. Computing them costs a pass over these tensors.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/step/router_stats.h"
#include "megatron_cpp/step/training_shards.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

// Statistics of a model's values: norms, zeros and histograms. Each element counts once in any layout.

/// Statistics of a set of values. Sums are fp64; their order of summation depends on the layout.
struct ValueStats {
  double count = 0, zeros = 0, sum = 0, sum_of_squares = 0;
  double max_abs = 0;  ///< maximum absolute value
  /// Counts by upper limit, four per octave; filled in on request.
  std::map<float, double> buckets = {};

  /// Adds the elements of `values`, which may have any floating-point type. Waits for the device.
  void add(const Tensor& values, bool has_buckets);
  ValueStats& operator+=(const ValueStats& other);
  double norm() const;
};

using StatsByName = std::map<std::string, ValueStats>;

/// Returns the statistics of all ranks combined, on every rank. Collective over `world`.
StatsByName sum_over_ranks(const StatsByName& local, Communicator& world);
/// Returns the statistics of all names combined.
ValueStats total_stats(const StatsByName& stats);
/// Groups statistics by layer_of() the parameters.
StatsByName group_by_layer(const StatsByName& by_parameter);

/// Statistics of one step, identical on all ranks.
struct StepStatistics {
  std::optional<double> params_norm;  ///< norm of the weights after the step
  std::optional<double> num_zeros;    ///< zeros in the gradient
  struct Layer {
    std::string name;
    double grad_norm = 0;  ///< norm before clipping; the norms of all layers combine to the global norm
    double params_norm = 0;
    double update_norm = 0;  ///< norm of the change of the weights (master weights) in the step
    std::optional<double> activation_rms,
        activation_max;  ///< statistics of the layer's output in the residual stream; only for transformer layers
  };
  std::vector<Layer> layers = {};            ///< layers in model order
  StatsByName weights = {}, gradients = {};  ///< statistics by parameter, with buckets; for histograms
};

/// Collects statistics at the iterations that the configuration selects. Collective.
class StatisticsCollector {
 public:
  /// `should_log(iteration)` must return true if a log line or a metrics record is written for the iteration.
  StatisticsCollector(StoredRef<LoggingConfig> config, TrainingState& state, Communicator& world,
                      std::function<bool(i64 iteration)> should_log)
      : config_(config), state_(state), world_(world), should_log_(std::move(should_log)) {}

  /// Must be called immediately before and after TrainingState::backward() of the iteration.
  void before_backward(i64 iteration);
  void after_backward();
  /// Returns the statistics of the gradients; call it between backward() and update().
  StepStatistics gradient_statistics(i64 iteration);
  /// Adds the statistics of the weights after the update, before the next gradient_statistics(). `grad_norm` is the
  /// global gradient norm of the step.
  void add_weights(i64 iteration, double grad_norm, StepStatistics& step);

 private:
  bool is_due(i64 interval, i64 iteration) const { return interval > 0 && iteration % interval == 0; }
  bool needs_layer_statistics(i64 iteration) const { return is_due(config_.log_layer_statistics_interval, iteration); }
  /// Returns the weights that this rank represents, or their master weights.
  std::vector<NamedShard> owned_weights() const;
  /// Copies owned_weights() to host memory.
  void copy_weights();
  /// Adds the norms of the change of the weights since copy_weights(), and releases the copy.
  void add_update_norms(StepStatistics& step);
  bool needs_histograms(i64 iteration) const { return is_due(config_.tensorboard_histogram_interval, iteration); }

  const LoggingConfig& config_;
  TrainingState& state_;
  Communicator& world_;
  std::function<bool(i64)> should_log_;
  StatsByName activations_;  // statistics of this rank
  CpuDevice host_;
  std::vector<Tensor> weights_before_;  // in the order of owned_weights()
};

// Load statistics of the experts during training.

/// Statistics of one layer in one step.
struct ExpertLayerStats {
  i64 layer = 0;
  std::vector<double> tokens;  ///< [experts] number of tokens routed to each
  double max_load = 0;         ///< load of the busiest expert relative to the mean
  double dropped = 0;          ///< fraction of the choices dropped because the expert was full
  double balance_loss = 0;     ///< auxiliary loss without its coefficient; 1 for perfect balance
  double z_loss = 0;           ///< auxiliary loss without its coefficient
};

/// Returns the statistics of each layer; empty without experts. `tokens` is the size of the global batch.
std::vector<ExpertLayerStats> expert_stats(const std::vector<LayerRoutingStats>& stats, double tokens);
/// Summarizes the layers: the maximum of max_load, and the mean of every other value.
ExpertLayerStats summarize(const std::vector<ExpertLayerStats>& layers);

/// Detector for experts that receive no tokens over many steps.
class IdleExpertDetector {
 public:
  /// Each call of add() counts a step and returns a message for every expert that has been idle for `steps` consecutive
  /// steps, once per idle period.
  explicit IdleExpertDetector(i64 steps = 100) : steps_(steps) {}
  std::vector<std::string> add(const std::vector<LayerRoutingStats>& stats);

 private:
  i64 steps_;
  std::map<std::pair<i64, std::size_t>, i64> idle_;  // idle steps by layer and expert
};

}  // namespace mcpp
