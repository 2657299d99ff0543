// Work of one rank of a layout for a microbatch, and the time of the building blocks of layers.
#pragma once
#include "plan/cost/kernel_times.h"
#include "plan/cost/matmul_time.h"
#include "plan/cost/pass_time.h"
#include "plan/cost/prediction_input.h"

namespace mcpp {

class RankCostModel {
 public:
  explicit RankCostModel(const PredictionInput& job);

  const PredictionInput& job() const { return job_; }
  const ModelConfig& model() const { return job_.work.model; }
  const Layout& layout() const { return job_.layout; }
  const Collectives& collectives() const { return collectives_; }
  const KernelTimes& kernels() const { return kernels_; }
  /// Tokens of a microbatch on this rank, before sequence parallelism shards them.
  i64 tokens() const { return tokens_; }
  double element_bytes() const { return element_; }
  double unsharded_bytes() const;
  double stream_elements() const;

  /// Scales `kernel_seconds` seconds at the typical device speed to the slowest device of the job, and adds the gaps
  /// between `kernels` kernels.
  double seconds(double kernel_seconds, double kernels) const;
  double traffic_seconds(double elements, double kernels) const;
  /// Returns the time of `rows` tokens times a weight [out, in]; with `batch`, of `rows` for each of `batch` weights.
  UnitTime weight_products(i64 rows, i64 out, i64 in, ProductType type, i64 batch = 1) const;
  double product_seconds(ProductType type, const ProductShape& shape, double output_bytes, ProductPass pass) const;
  /// Returns the time of an activation function with `width` outputs per row, from `width` inputs or 2 `width` if
  /// gated.
  UnitTime activation(i64 rows, i64 width) const;

 private:
  const PredictionInput job_;
  Collectives collectives_;
  KernelTimes kernels_;
  double slow_, element_;
  i64 tokens_;
};

/// Returns the tensor-parallel communication around attention or around an MLP.
UnitTime region_communication(const RankCostModel& rank);

}  // namespace mcpp
