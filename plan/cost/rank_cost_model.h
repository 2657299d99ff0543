// Work of one rank of a layout for a microbatch, and the time of the building blocks of layers.
#pragma once
#include "plan/cost/kernel_times.h"
#include "plan/cost/workload.h"

namespace mcpp {

// Breakdown of the time of a microbatch's passes, in seconds.

/// Time of one pass.
struct PassTime {
  double gemms = 0, attention = 0, elementwise = 0;
  /// Exposed communication by kind.
  double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0, data_parallel = 0;

  double offloaded = 0;  ///< wait time for activations and weights that are offloaded to host memory or disk

  double communication() const { return tensor_parallel + context_parallel + expert_parallel + data_parallel; }
  double computing() const { return gemms + attention + elementwise; }
  double total() const { return computing() + communication() + offloaded; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
};

struct UnitTime {
  PassTime forward, backward_input, backward_weight;

  PassTime total() const;
  UnitTime& operator+=(const UnitTime& other);
  UnitTime operator*(double factor) const;
};

/// Returns the time of a layer whose entire forward pass is recomputed: the time of the forward pass is added to
/// backward_input.
UnitTime add_full_recompute(const UnitTime& layer);

class RankCostModel {
 public:
  explicit RankCostModel(const PredictionInput& input);

  const PredictionInput& input() const { return input_; }
  const ModelConfig& model() const { return input_.work.model; }
  const Layout& layout() const { return input_.layout; }
  const Collectives& collectives() const { return collectives_; }
  const KernelTimes& kernels() const { return kernels_; }
  /// Returns the tokens of a microbatch on this rank, before sequence parallelism shards them.
  i64 tokens() const { return tokens_; }
  double element_bytes() const { return element_bytes_; }
  double unsharded_bytes() const;
  double stream_elements() const;

  /// Scales `kernel_seconds`, the time on a typical device, to the slowest device of the layout, and adds the gaps
  /// between `kernels` kernels.
  double seconds(double kernel_seconds, double kernels) const;
  double traffic_seconds(double elements, double kernels) const;
  double gemm_seconds(GemmType type, const MatmulShape& shape, double output_bytes, GemmPass pass) const;

 private:
  const PredictionInput input_;
  Collectives collectives_;
  KernelTimes kernels_;
  double slowdown_, element_bytes_;
  i64 tokens_;
};

}  // namespace mcpp
