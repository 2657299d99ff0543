// Stage 3 (FSDP): every rank holds its part of the weights; a unit's whole weights exist while it is used.
#pragma once
#include <memory>
#include <optional>

#include "parallel/dp/node_copy.h"
#include "parallel/dp/store.h"
#include "parallel/dp/wire.h"

namespace mcpp {

class ShardedParams final : public ParamStore {
 public:
  /// `prefetch`: gather one unit ahead.
  ShardedParams(const StoreContext& context, const Wire& wire, DType dtype, bool prefetch);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t bucket) override;
  void publish() override;
  void settle() override;
  Tensor shard(std::size_t bucket) const override { return context_.shard_of(shards_, bucket); }

 private:
  /// A bucket that is used or prefetched.
  struct Gathered {
    Tensor message;
    Work work;
    Tensor full;  // what the message says, once it is needed
  };

  void start_gather(std::size_t bucket);
  void start_prefetch(std::size_t bucket);
  void forget_prefetched();
  i64 size(std::size_t bucket) const { return context_.plan.buckets[bucket].size(); }

  StoreContext context_;
  Wire wire_;
  bool prefetch_;
  Tensor shards_;
  std::unique_ptr<NodeCopy> node_copy_;            // null where there are no nodes
  std::vector<std::optional<Gathered>> gathered_;  // by bucket
  std::optional<std::size_t> prefetched_;
};

}  // namespace mcpp
