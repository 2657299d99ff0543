// The weights that an optimizer works on, where these are kept away: one shard at a time.
#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// Where the weights of a ShardSegment are.
struct WeightsPlace {
  Tensor here;  ///< undefined where they are away
  StateStore* away = nullptr;
  std::size_t place = 0;

  bool operator==(const WeightsPlace& other) const { return away == other.away && place == other.place; }
  /// Weights [first, first + count), between uses.
  std::shared_ptr<StoredNumbers> at_rest(i64 first, i64 count) const {
    return away ? away->at_rest(place, 0, first, count) : in_memory(here.flat(first, count));
  }
};

class WeightsInUse {
 public:
  /// `changes`: what is written to them goes back, once `finish_writes` has waited for all of it.
  WeightsInUse(bool changes, std::function<void()> finish_writes)
      : changes_(changes), finish_writes_(std::move(finish_writes)) {}

  /// Valid until the next call for another place.
  Tensor of(const WeightsPlace& place) {
    if (!place.away) return place.here;
    if (place_ == place) return weights_;
    done();
    weights_ = place.away->fetch(place.place).front();
    place_ = place;
    return weights_;
  }
  /// After the last.
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
