// Sharded gradients, for stages 2 and 3. The full gradients of a unit exist only while backward is in it. On leaving it
// they are reduce-scattered, and each rank adds its shard to the sum of earlier microbatches. After the last
// microbatch, shards are summed over the ranks that hold the same one (HSDP).
#pragma once
#include <memory>
#include <optional>

#include "parallel/dp/store.h"

namespace mcpp {

class ShardedGrads final : public GradStore {
 public:
  /// `dtype` is the type of a unit's gradients during backward and `kept` that of messages and shards. If `overlap`, a
  /// unit's gradients are reduced while backward computes the next one's.
  ShardedGrads(const StoreContext& context, DType dtype, DType kept, bool overlap);

  void begin_step() override;
  void acquire(std::size_t bucket) override;
  void release(std::size_t bucket, int unit, bool last) override;
  void finish() override;
  Tensor shard(std::size_t bucket) const override { return context_.shard_of(shards_, bucket); }

 private:
  struct Reduction {
    std::size_t bucket;
    Tensor part;   // this rank's part of the sum
    bool is_last;  // in the step
    Work work;
  };

  /// Returns the gradients in the dtype of the shards.
  Tensor rounded(const Tensor& grads) const;
  /// Starts the sum of a unit's gradients over the ranks.
  void reduce(std::size_t bucket, const Tensor& full, bool is_last);
  /// Waits for the reduction in flight and adds its result to the shard.
  void collect();
  /// Starts the sum of this rank's shard over the replicas, once.
  void sum_over_replicas(std::size_t bucket);

  StoreContext context_;
  DType dtype_;
  bool overlap_;
  Tensor shards_;
  std::vector<Tensor> full_;     // by bucket; undefined unless acquired
  std::vector<bool> has_grads_;  // by bucket: whether its shard holds gradients of this step
  std::unique_ptr<Reduction> reduction_;
  std::vector<std::optional<Work>> replicas_;  // by bucket: sum over the replicas
};

}  // namespace mcpp
