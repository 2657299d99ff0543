// What one rank of a layout has of a microbatch, and how long its device takes for the parts that layers are made of.
#pragma once
#include "plan/cost/job.h"
#include "plan/cost/kernel_times.h"
#include "plan/cost/pass_time.h"
#include "plan/cost/products.h"

namespace mcpp {

class RankWork {
 public:
  explicit RankWork(const Job& job);

  const Job& job() const { return job_; }
  const ModelConfig& model() const { return job_.work.model; }
  const Layout& layout() const { return job_.layout; }
  const Collectives& collectives() const { return collectives_; }
  const KernelTimes& kernels() const { return kernels_; }
  /// Of a microbatch, between the parallel regions and inside them.
  i64 tokens() const { return tokens_; }
  double element_bytes() const { return element_; }
  double whole_bytes() const;
  double stream_elements() const;

  /// Of so many seconds at the speed of most devices, what the slowest of the job takes; with gaps between kernels.
  double seconds(double of_kernels, double kernels) const;
  double traffic_seconds(double elements, double kernels) const;
  /// Of `rows` of tokens with one weight [out, in], or as many rows with each of `batch`.
  UnitTime weight_products(i64 rows, i64 out, i64 in, ProductType type, i64 batch = 1) const;
  double product_seconds(ProductType type, const ProductShape& shape, double output_bytes, ProductPass pass) const;
  /// Of an activation function that makes `width` of twice as many or of as many, as the model says.
  UnitTime activation(i64 rows, i64 width) const;

 private:
  const Job job_;
  Collectives collectives_;
  KernelTimes kernels_;
  double slow_, element_;
  i64 tokens_;
};

/// What tensor-parallel ranks communicate around attention, or around an MLP.
UnitTime region_communication(const RankWork& rank);

}  // namespace mcpp
