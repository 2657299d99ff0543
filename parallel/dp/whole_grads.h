// Stages 0 and 1: every rank holds all gradients and adds up those of its microbatches; once a step they are summed
// over the ranks, bucket by bucket: on all of them (stage 0), or each part on the rank that updates it (stage 1).
#pragma once
#include <set>

#include "parallel/dp/store.h"

namespace mcpp {

class WholeGrads final : public GradStore {
 public:
  /// `overlap`: reduce a bucket as soon as its units are done.
  WholeGrads(const StoreContext& context, DType dtype, bool overlap);

  void begin_step() override;
  void acquire(std::size_t) override {}
  void release(std::size_t bucket, int unit, bool last) override;
  void finish() override;
  Tensor shard(std::size_t bucket) const override { return context_.own_part(whole(bucket)); }

 private:
  struct Reduction {
    std::set<int> pending;  ///< units with parameters whose gradients are not complete
    bool is_started = false;
    Work work;
  };

  Tensor whole(std::size_t bucket) const;
  void start_reduction(std::size_t bucket);
  void sum_over_replicas();

  StoreContext context_;
  bool overlap_;
  Tensor flat_;
  std::vector<Reduction> reductions_;  // by bucket
};

}  // namespace mcpp
