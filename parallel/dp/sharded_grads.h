// Stages 2 and 3: every rank holds its part of the gradients. Those of a unit exist whole while backward is in it; when
// it leaves they are summed over the ranks, and each adds its part to what earlier microbatches left there. When the
// last has, the part is summed over the ranks that hold the same one (HSDP).
#pragma once
#include <memory>
#include <optional>

#include "parallel/dp/store.h"

namespace mcpp {

class ShardedGrads final : public GradStore {
 public:
  /// `dtype`: of a unit's gradients while backward is in it; `kept`: of what is sent of them and kept. `overlap`:
  /// reduce a unit's gradients while backward computes the next one's.
  ShardedGrads(const StoreContext& context, DType dtype, DType kept, bool overlap);

  void begin_step() override;
  void acquire(std::size_t bucket) override;
  void release(std::size_t bucket, int unit, bool last) override;
  void finish() override;
  Tensor shard(std::size_t bucket) const override { return context_.shard_of(shards_, bucket); }

 private:
  struct Reduction {
    std::size_t bucket;
    Tensor part;   // this rank's, of the sum
    bool is_last;  // of the step
    Work work;
  };

  /// The same gradients in the type that is kept.
  Tensor rounded(const Tensor& grads) const;
  /// Starts the sum of a unit's gradients over the ranks.
  void reduce(std::size_t bucket, const Tensor& full, bool is_last);
  /// Waits for the reduction under way and adds its result to the shard.
  void collect();
  /// Starts the sum of this rank's part over the replicas, once.
  void sum_over_replicas(std::size_t bucket);

  StoreContext context_;
  DType dtype_;
  bool overlap_;
  Tensor shards_;
  std::vector<Tensor> full_;     // by bucket; undefined unless acquired
  std::vector<bool> has_grads_;  // by bucket: whether its shard holds anything of this step
  std::unique_ptr<Reduction> reduction_;
  std::vector<std::optional<Work>> replicas_;  // by bucket: its sum over the replicas
};

}  // namespace mcpp
