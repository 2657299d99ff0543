// Stage 3 (FSDP): every rank holds its part of the weights; a unit's whole weights exist while it is used. That part
// may be kept away (away_params.h): it comes for each gather, and its next ones meanwhile.
#pragma once
#include <memory>
#include <optional>

#include "parallel/dp/away_params.h"
#include "parallel/dp/node_copy.h"
#include "parallel/dp/store.h"
#include "parallel/dp/wire.h"

namespace mcpp {

class ShardedParams final : public ParamStore {
 public:
  /// `prefetch`: gather one unit ahead. `away`: its store is empty; null: this rank's part stays on the device.
  ShardedParams(const StoreContext& context, const Wire& wire, DType dtype, bool prefetch,
                std::unique_ptr<AwayParams> away = nullptr);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t bucket) override;
  void publish() override;
  void finish_gathers() override;
  Tensor shard(std::size_t bucket) const override { return away_ ? Tensor() : context_.shard_of(shards_, bucket); }
  StateStore* away() const override { return away_ ? &away_->store() : nullptr; }

 private:
  /// A bucket that is used or prefetched.
  struct Gathered {
    Tensor message;
    Work work;
    Tensor full;  // what the message says, once it is needed
  };

  void start_gather(std::size_t bucket);
  /// The part that this rank has of a bucket that is about to be gathered; where it was away, and is not on its way
  /// beside the computing, in its place in the message if weights travel as they are.
  Tensor own_part(std::size_t bucket, const Tensor& message) const;
  /// Parts of the buckets after this one in the loop are wanted next.
  void expect_after(std::size_t bucket, Use use);
  void start_prefetch(std::size_t bucket);
  void forget_prefetched();
  /// Its whole weights come from the ranks of this node.
  bool is_near(std::size_t bucket) const { return node_copy_ && node_copy_->has(bucket); }
  i64 size(std::size_t bucket) const { return context_.plan.buckets[bucket].size(); }

  StoreContext context_;
  Wire wire_;
  DType dtype_;
  bool prefetch_;
  std::unique_ptr<AwayParams> away_;
  Tensor shards_;                                  // undefined where they are away
  std::unique_ptr<NodeCopy> node_copy_;            // null where there are no nodes
  std::vector<std::optional<Gathered>> gathered_;  // by bucket
  std::optional<std::size_t> prefetched_;
};

}  // namespace mcpp
