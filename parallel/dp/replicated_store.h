// Replicated parameters and gradients of ZeRO stages 0 to 2.
#pragma once
#include <memory>
#include <optional>
#include <set>

#include "parallel/dp/power_sgd.h"
#include "parallel/dp/weight_codec.h"

namespace mcpp {

/// Replicated parameters, for stages 0, 1 and 2: every rank holds all weights. If each rank updates only a shard,
/// publish() all-gathers the shards.
class ReplicatedParams final : public ParamStore {
 public:
  ReplicatedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool overlaps);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t) override {}
  void publish() override;
  void finish_gathers() override;
  Tensor shard(std::size_t bucket) const override;

 private:
  /// All-gather of new weights in flight.
  struct Gather {
    Tensor message;  // undefined once decoded
    Work work;
  };

  Tensor bucket_view(std::size_t bucket) const;
  void finish(std::size_t bucket);

  StoreContext context_;
  WeightCodec codec_;
  bool overlaps_;
  Tensor flat_;
  Tensor shards_;                // with encoded weights: the full-precision shard that this rank updates
  std::vector<Gather> gathers_;  // by bucket
};

/// Replicated gradients, for stages 0 and 1: every rank holds all gradients and accumulates its microbatches. Once per
/// step they are summed over the ranks, bucket by bucket: on all ranks (stage 0), or each part on the rank that updates
/// it (stage 1). With HSDP, the parts are then summed over the ranks that hold the same part.
class ReplicatedGrads final : public GradStore {
 public:
  /// If `overlaps`, reduces a bucket as soon as its units are complete. `power_sgd_rank` is as in CommFormats.
  ReplicatedGrads(const StoreContext& context, DType dtype, bool overlaps, i64 power_sgd_rank);

  void begin_step() override;
  void acquire(std::size_t) override {}
  void release(std::size_t bucket, int unit, bool is_last) override;
  void finish() override;
  Tensor shard(std::size_t bucket) const override { return context_.own_part(bucket_view(bucket)); }
  void set_exact_reduction(bool is_exact) override { is_reduction_exact_ = is_exact; }
  void end_step(const Tensor& factor) override;
  std::span<const PowerSgdState> power_sgd_states() const override;

 private:
  struct Reduction {
    std::set<int> pending;  ///< units with parameters whose gradients are not complete
    bool is_started = false;
    Work work;
  };

  bool uses_power_sgd() const { return power_sgd_ && !is_reduction_exact_; }
  Tensor bucket_view(std::size_t bucket) const;
  void start_reduction(std::size_t bucket);
  /// Starts the sum of a bucket over a group of several ranks.
  Work sum(std::size_t bucket);
  void wait_for_reductions(std::optional<std::size_t> except = std::nullopt);
  bool has_replicas() const { return context_.groups.replicate.size() > 1; }
  /// Waits for the sum of a bucket over its group and starts the sum over the replicas. Does nothing without a bucket.
  void sum_over_replicas(std::optional<std::size_t> bucket);

  StoreContext context_;
  bool overlaps_;
  bool is_reduction_exact_ = false;
  Tensor flat_;
  std::unique_ptr<PowerSgd> power_sgd_;  // null if sums are exact
  std::vector<Reduction> reductions_;    // by bucket
  std::optional<std::size_t> latest_;    // bucket whose sum was started most recently
};

}  // namespace mcpp
