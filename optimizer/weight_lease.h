// Access to the weights of an optimizer that may be offloaded: one shard at a time.
#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

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

}  // namespace mcpp
