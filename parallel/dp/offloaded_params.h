// Offloaded weights of this rank and their transfer to the device (ZeRO-Infinity, Rajbhandari et al. 2021).
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "nn/offload/state_store.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

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
  std::unique_ptr<AsyncCopyEngine> copies_;  // destroyed before the store, whose memory its copies may use
  std::optional<PendingCopy> pending_copy_;
};

}  // namespace mcpp
