// ZeRO stage 0: every rank holds all parameters and gradients; gradients are all-reduced bucket by bucket.
#pragma once
#include <set>
#include <vector>

#include "parallel/dp/buffer.h"

namespace mcpp {

class ReplicatedBuffer final : public ParamAndGradBuffer {
 public:
  ReplicatedBuffer(std::span<const UnitParam> params, DType dtype, Device& device, Communicator& dp,
                   i64 bucket_elements);

  void acquire(int unit, Use use) override;
  void release(int unit, Use use, bool last) override;
  void finish() override;
  void publish() override {}
  std::vector<ShardSegment> shard() const override;
  bool reduces_every_pass() const override { return false; }
  Communicator& replicas() const override { return dp_; }

 private:
  struct Reduction {
    std::set<int> pending;  ///< units with parameters whose gradients are not complete
    bool is_started = false;
    Work work;
  };

  void begin_step() override;
  void start_reduction(std::size_t bucket);

  Communicator& dp_;
  Tensor flat_params_, flat_grads_;
  std::vector<Reduction> reductions_;  // by bucket
};

}  // namespace mcpp
