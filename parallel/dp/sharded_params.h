// Sharded parameters, for stage 3 (FSDP): a unit's full weights exist only while it is in use. This rank's shard may be
// offloaded (offloaded_params.h); it is fetched for each gather and prefetched ahead.
#pragma once
#include <memory>
#include <optional>

#include "parallel/dp/offloaded_params.h"
#include "parallel/dp/secondary_weight_shard.h"
#include "parallel/dp/store.h"
#include "parallel/dp/weight_codec.h"

namespace mcpp {

class ShardedParams final : public ParamStore {
 public:
  /// If `prefetch`, gathers one unit ahead. `offload_store` must have an empty store; null keeps this rank's shard on
  /// the device.
  ShardedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool prefetch,
                std::unique_ptr<OffloadedParams> offload_store = nullptr);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t bucket) override;
  void publish() override;
  void finish_gathers() override;
  Tensor shard(std::size_t bucket) const override {
    return offloaded_params_ ? Tensor() : context_.shard_of(shards_, bucket);
  }
  StateStore* offload_store() const override { return offloaded_params_ ? &offloaded_params_->store() : nullptr; }

 private:
  /// Bucket that is in use or prefetched.
  struct Gathered {
    Tensor message;
    Work work;
    Tensor full;  // decoded message, once needed
  };

  void start_gather(std::size_t bucket);
  /// Returns this rank's shard of a bucket about to be gathered. An offloaded shard that is not being copied
  /// asynchronously is fetched directly into its place in the message, if weights are not encoded.
  Tensor own_part(std::size_t bucket, const Tensor& message) const;
  /// Announces the buckets after this one in the loop to the offload store.
  void prefetch_after(std::size_t bucket, Use use);
  void start_prefetch(std::size_t bucket);
  void forget_prefetched();
  /// Returns true if the full weights can be gathered from the ranks of this node.
  bool has_secondary_shard(std::size_t bucket) const { return secondary_shard_ && secondary_shard_->has(bucket); }
  i64 size(std::size_t bucket) const { return context_.plan.buckets[bucket].size(); }

  StoreContext context_;
  WeightCodec codec_;
  DType dtype_;
  bool prefetch_;
  std::unique_ptr<OffloadedParams> offloaded_params_;
  Tensor shards_;                                          // undefined if offloaded
  std::unique_ptr<SecondaryWeightShard> secondary_shard_;  // null without nodes
  std::vector<std::optional<Gathered>> gathered_;          // by bucket
  std::optional<std::size_t> prefetched_;
};

}  // namespace mcpp
