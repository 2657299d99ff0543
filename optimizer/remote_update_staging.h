// Updates of parts whose states are on a different device than their weights or gradient: copies these to the states'
// device, prefetching the next part during the update of the current one. Usually states are on the host and weights on
// a GPU; if weights are offloaded and states are not, the roles are reversed.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "optimizer/update_rule.h"
#include "parallel/dp/buckets/buffer.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

// Access to the weights of an optimizer that may be offloaded: one shard at a time.

/// Location of the weights of a ShardSegment.
struct WeightLocation {
  Tensor resident;  ///< undefined if they are offloaded
  StateStore* offload_store = nullptr;
  std::size_t segment = 0;  ///< segment of the store

  bool operator==(const WeightLocation& other) const {
    return offload_store == other.offload_store && segment == other.segment;
  }
  /// Returns weights [first, first + count), as stored between uses.
  std::shared_ptr<TensorStorage> stored_view(i64 first, i64 count) const {
    return offload_store ? offload_store->stored_view(segment, 0, first, count)
                         : make_tensor_storage(resident.flat(first, count));
  }
};

/// Access to the weights of one location at a time.
class WeightLease {
 public:
  /// `modifies_weights`: weights are written back, after `finish_writes` has waited for all writes to them.
  WeightLease(bool modifies_weights, std::function<void()> finish_writes)
      : modifies_weights_(modifies_weights), finish_writes_(std::move(finish_writes)) {}

  /// Returns the weights; valid until the next call for a different location.
  Tensor acquire(const WeightLocation& location) {
    if (!location.offload_store) return location.resident;
    if (location_ == location) return weights_;
    release();
    weights_ = location.offload_store->fetch(location.segment).front();
    location_ = location;
    return weights_;
  }
  /// Releases the weights. Call after the last use.
  void release() {
    if (!location_) return;
    finish_writes_();
    modifies_weights_ ? location_->offload_store->drop(location_->segment)
                      : location_->offload_store->release_clean(location_->segment);
    location_.reset();
  }

 private:
  bool modifies_weights_;
  std::function<void()> finish_writes_;
  std::optional<WeightLocation> location_;
  Tensor weights_;
};

/// Staging of remote parts during one pass over the parts.
class RemoteUpdateStaging {
 public:
  /// `copies` must belong to the device of the gradients.
  RemoteUpdateStaging(AsyncCopyEngine& copies, PinnedBufferPool& pinned_buffers)
      : copies_(copies), pinned_buffers_(pinned_buffers) {}

  /// Returns true if prefetching with prefetch() has any effect.
  bool is_asynchronous() const { return !copies_.is_synchronous(); }
  /// Starts copying these tensors of the next part.
  void prefetch(const std::vector<Tensor>& tensors);
  /// Returns `original` with copies on `device`, the device of the states, of all tensors on other devices.
  UpdatePart stage_on(const UpdatePart& original, Device& device);
  /// Starts copying back the weights and those in the model's dtype after an update.
  void copy_back_weights(const UpdatePart& staged, const UpdatePart& original);
  /// Starts copying back the result of UpdateRule::prepare(), which replaces the gradient.
  void copy_back_gradient(const UpdatePart& staged, const UpdatePart& original);
  /// Waits for all copies back.
  void wait_for_copies_back();

 private:
  /// Tensor in flight and its host buffer.
  struct PendingCopy {
    Tensor original;
    std::shared_ptr<const Tensor> buffer;
    AsyncCopy copy;
  };
  /// Maximum number of copies back in flight before buffers are reused: weights and model of two parts.
  static constexpr std::size_t kMaxCopiesBack = 4;

  PendingCopy start(const Tensor& original);
  Tensor stage(const Tensor& original, Device& device);
  void start_copy_back(const Tensor& staged, const Tensor& original);

  AsyncCopyEngine& copies_;
  PinnedBufferPool& pinned_buffers_;
  std::vector<PendingCopy> prefetched_, staged_buffers_;
  std::deque<PendingCopy> copies_back_;
  std::vector<AsyncCopy> to_host_;  // copies back to the host
};

/// Returns a copy of `values` in the memory of `device`, or `values` if it is already there. Blocks the host until the
/// ops that compute it are done.
Tensor copy_to(Device& device, const Tensor& values);

}  // namespace mcpp
