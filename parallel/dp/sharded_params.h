// Stage 3 (FSDP): every rank holds its part of the weights; a unit's whole weights exist while it is used.
#pragma once
#include <optional>

#include "parallel/dp/store.h"

namespace mcpp {

class ShardedParams final : public ParamStore {
 public:
  /// `prefetch`: gather one unit ahead.
  ShardedParams(const StoreContext& context, DType dtype, bool prefetch);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t bucket) override;
  void publish() override { forget_prefetched(); }
  void settle() override;
  Tensor shard(std::size_t bucket) const override { return context_.shard_of(shards_, bucket); }

 private:
  struct Gathered {
    Tensor full;  // undefined while the bucket is neither used nor prefetched
    Work work;
  };

  void start_gather(std::size_t bucket);
  void start_prefetch(std::size_t bucket);
  void forget_prefetched();

  StoreContext context_;
  bool prefetch_;
  Tensor shards_;
  std::vector<Gathered> gathered_;  // by bucket
  std::optional<std::size_t> prefetched_;
};

}  // namespace mcpp
