// Updates of parts whose states are on another device than their weights or gradient: copies these to the states'
// device, prefetching the next part during the update of the current one. Usually states are on the host and weights on
// a GPU; if weights are offloaded and states are not, it is the other way round.
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
  std::size_t place = 0;

  bool operator==(const WeightLocation& other) const {
    return offload_store == other.offload_store && place == other.place;
  }
  /// Weights [first, first + count), as stored between uses.
  std::shared_ptr<TensorStorage> stored_view(i64 first, i64 count) const {
    return offload_store ? offload_store->stored_view(place, 0, first, count)
                         : make_tensor_storage(resident.flat(first, count));
  }
};

class WeightLease {
 public:
  /// `changes`: modified weights are written back, after `finish_writes` has waited for all writes to them.
  WeightLease(bool changes, std::function<void()> finish_writes)
      : changes_(changes), finish_writes_(std::move(finish_writes)) {}

  /// Returns the weights; valid until the next call for another location.
  Tensor of(const WeightLocation& place) {
    if (!place.offload_store) return place.resident;
    if (place_ == place) return weights_;
    done();
    weights_ = place.offload_store->fetch(place.place).front();
    place_ = place;
    return weights_;
  }
  /// Releases the weights. Call after the last use.
  void done() {
    if (!place_) return;
    finish_writes_();
    changes_ ? place_->offload_store->drop(place_->place) : place_->offload_store->release_clean(place_->place);
    place_.reset();
  }

 private:
  bool changes_;
  std::function<void()> finish_writes_;
  std::optional<WeightLocation> place_;
  Tensor weights_;
};

/// Staging of remote parts during one pass over the parts.
class RemoteUpdateStaging {
 public:
  /// `copies` must belong to the device of the gradients.
  RemoteUpdateStaging(AsyncCopyEngine& copies, PinnedBufferPool& rooms) : copies_(copies), pinned_buffers_(rooms) {}

  /// Returns true if prefetching with prefetch() has any effect.
  bool is_asynchronous() const { return !copies_.is_synchronous(); }
  /// Starts copying these tensors of the next part.
  void prefetch(const std::vector<Tensor>& tensors);
  /// Returns `original` with tensors that are not on `device`, the device of the states, copied there.
  UpdatePart stage_on(const UpdatePart& original, Device& device);
  /// Starts copying back the weights and those in the model's dtype after an update.
  void copy_back_weights(const UpdatePart& staged, const UpdatePart& original);
  /// Starts copying back the result of UpdateRule::prepare(), which replaces the gradient.
  void copy_back_gradient(const UpdatePart& staged, const UpdatePart& original);
  /// Waits for all copies back.
  void wait_for_copies_back();

 private:
  /// A tensor in flight, and its host buffer.
  struct PendingCopy {
    Tensor original;
    std::shared_ptr<const Tensor> buffer;
    AsyncCopy copy;
  };
  /// Max number of copies back in flight before buffers are reused: weights and model of two parts.
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
