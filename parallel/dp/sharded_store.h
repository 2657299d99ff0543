// Sharded parameters and gradients of ZeRO stages 2 and 3.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "nn/offload/state_store.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/dp/weight_codec.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

/// Offloaded weights of this rank and their transfer to the device (ZeRO-Infinity, Rajbhandari et al. 2021).
class OffloadedParams {
 public:
  /// `store` has one segment of one vector per bucket, in host memory pinned for `copies`, the copy engine of `device`.
  OffloadedParams(std::unique_ptr<StateStore> store, std::unique_ptr<AsyncCopyEngine> copies, Device& device)
      : device_(device), store_(std::move(store)), copies_(std::move(copies)) {}

  StateStore& store() const { return *store_; }
  /// Returns true if copies are asynchronous. Prefetched shards then arrive in tensors of their own; otherwise copying
  /// directly to the destination is faster.
  bool is_asynchronous() const { return !copies_->is_synchronous(); }
  /// Announces the buckets needed next, in order. With is_asynchronous(), starts copying the first one to the device.
  void prefetch(const std::vector<std::size_t>& buckets);
  /// Returns the shard of a bucket on the device, ready for ops queued from now on. Requires is_asynchronous().
  Tensor take(std::size_t bucket);
  /// Copies the shard of a bucket into `part`.
  void copy_into(std::size_t bucket, Tensor& part);
  /// Waits for the transfer in flight, after which the store may be used by others.
  void finish_fetch();

 private:
  /// Shard being copied to the device. Its segment stays in use until the copy has completed.
  struct PendingCopy {
    std::size_t bucket;
    Tensor part;
    AsyncCopy copy;
  };
  void start(std::size_t bucket);

  Device& device_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<AsyncCopyEngine> copies_;  // destroyed before the store, because its copies may use their memory
  std::optional<PendingCopy> pending_copy_;
};

/// Secondary weight shards within a node (hpZ of ZeRO++, Wang et al. 2023, section 3.2): once a unit's weights have
/// been gathered from all ranks, the ranks of a node keep them sharded among themselves, and later uses in the step
/// gather within the node.
class SecondaryWeightShard {
 public:
  /// `node` is the group of ranks that keep a copy together; its size must divide the plan's buckets.
  SecondaryWeightShard(const BufferPlan& plan, Communicator& node, const WeightCodec& codec, Device& device);

  /// Invalidates the copy after a weight update.
  void invalidate();
  bool contains(std::size_t bucket) const { return is_stored_[bucket]; }
  /// Stores this rank's part of the message of a full bucket.
  void store_part(std::size_t bucket, const Tensor& message);
  /// Starts gathering the stored message of a bucket.
  Work gather(std::size_t bucket, Tensor& message) const;

 private:
  /// Returns the number of elements of this rank's part of a bucket's message.
  i64 numel(std::size_t bucket) const;
  Tensor part(std::size_t bucket) const { return parts_.flat(offsets_[bucket], numel(bucket)); }

  const BufferPlan& plan_;
  Communicator& node_;
  WeightCodec codec_;
  std::vector<i64> offsets_;  // offsets of buckets in parts_
  Tensor parts_;
  std::vector<bool> is_stored_;  // by bucket
};

/// Sharded parameters, for stage 3 (FSDP): a unit's full weights exist only while it is in use. This rank's shard may
/// be offloaded (OffloadedParams); it is fetched for each gather and prefetched ahead.
class ShardedParams final : public ParamStore {
 public:
  /// If `should_prefetch`, gathers one unit ahead. `offload_store` must have an empty store; null keeps this rank's
  /// shard on the device.
  ShardedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool should_prefetch,
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
  /// asynchronously is fetched directly into its part of the message, if weights are not encoded.
  Tensor own_part(std::size_t bucket, const Tensor& message) const;
  /// Announces the buckets after this one in the loop to the offload store.
  void prefetch_after(std::size_t bucket, Use use);
  void start_prefetch(std::size_t bucket);
  void discard_prefetched();
  /// Returns true if the full weights can be gathered from the ranks of this node.
  bool has_secondary_shard(std::size_t bucket) const { return secondary_shard_ && secondary_shard_->contains(bucket); }
  i64 size(std::size_t bucket) const { return context_.plan.buckets[bucket].size(); }

  StoreContext context_;
  WeightCodec codec_;
  DType dtype_;
  bool should_prefetch_;
  std::unique_ptr<OffloadedParams> offloaded_params_;
  Tensor shards_;                                          // undefined if offloaded
  std::unique_ptr<SecondaryWeightShard> secondary_shard_;  // null without node groups
  std::vector<std::optional<Gathered>> gathered_;          // by bucket
  std::optional<std::size_t> prefetched_;
};

/// Sharded gradients, for stages 2 and 3. The full gradients of a unit exist only while backward is in it. On leaving
/// it they are reduce-scattered, and each rank adds its shard to the sum of earlier microbatches. With HSDP, shards are
/// summed over the ranks that hold the same shard after the last microbatch.
class ShardedGrads final : public GradStore {
 public:
  /// `dtype` is the type of a unit's gradients during backward and `shard_dtype` the type of messages and shards. If
  /// `overlaps`, a unit's gradients are reduced while backward computes the next one's.
  ShardedGrads(const StoreContext& context, DType dtype, DType shard_dtype, bool overlaps);

  void begin_step() override;
  void acquire(std::size_t bucket) override;
  void release(std::size_t bucket, int unit, bool is_last) override;
  void finish() override;
  Tensor shard(std::size_t bucket) const override { return context_.shard_of(shards_, bucket); }

 private:
  struct Reduction {
    std::size_t bucket;
    Tensor part;   // part of the sum for this rank
    bool is_last;  // in the step
    Work work;
  };

  /// Returns the gradients in the dtype of the shards.
  Tensor to_shard_dtype(const Tensor& grads) const;
  /// Starts the sum of a unit's gradients over the ranks.
  void reduce(std::size_t bucket, const Tensor& full, bool is_last);
  /// Waits for the reduction in flight and adds its result to the shard.
  void finish_reduction();
  /// Starts the sum of the shard of this rank over the replicas, unless already started or there is only one replica.
  void sum_over_replicas(std::size_t bucket);

  StoreContext context_;
  DType dtype_;
  bool overlaps_;
  Tensor shards_;
  std::vector<Tensor> full_;     // by bucket; undefined unless acquired
  std::vector<bool> has_grads_;  // by bucket: whether its shard holds gradients of this step
  std::unique_ptr<Reduction> reduction_;
  std::vector<std::optional<Work>> replica_sums_;  // by bucket: sum over the replicas
};

}  // namespace mcpp
