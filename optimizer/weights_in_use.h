// Access to the weights of an optimizer that may be offloaded: one shard at a time.
#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// Location of the weights of a ShardSegment.
struct WeightsPlace {
  Tensor here;  ///< undefined if they are offloaded
  StateStore* away = nullptr;
  std::size_t place = 0;

  bool operator==(const WeightsPlace& other) const { return away == other.away && place == other.place; }
  /// Weights [first, first + count), as stored between uses.
  std::shared_ptr<StoredNumbers> at_rest(i64 first, i64 count) const {
    return away ? away->at_rest(place, 0, first, count) : in_memory(here.flat(first, count));
  }
};

class WeightsInUse {
 public:
  /// `changes`: modified weights are written back, after `finish_writes` has waited for all writes to them.
  WeightsInUse(bool changes, std::function<void()> finish_writes)
      : changes_(changes), finish_writes_(std::move(finish_writes)) {}

  /// Returns the weights; valid until the next call for another location.
  Tensor of(const WeightsPlace& place) {
    if (!place.away) return place.here;
    if (place_ == place) return weights_;
    done();
    weights_ = place.away->fetch(place.place).front();
    place_ = place;
    return weights_;
  }
  /// Releases the weights. Call after the last use.
  void done() {
    if (!place_) return;
    finish_writes_();
    changes_ ? place_->away->drop(place_->place) : place_->away->drop_unchanged(place_->place);
    place_.reset();
  }

 private:
  bool changes_;
  std::function<void()> finish_writes_;
  std::optional<WeightsPlace> place_;
  Tensor weights_;
};

}  // namespace mcpp
