// Assignment of operations to the queues of a group, so that weight all-gathers do not wait behind gradient reductions.
#pragma once
#include <array>
#include <cstddef>

#include "base/types.h"

namespace mcpp {

/// Selector of one of two lanes for two kinds of operations. An operation joins the lane in which its kind is in
/// flight; otherwise it takes the first idle lane. Groups that wait for every operation before the next one therefore
/// use one lane only.
///
/// All ranks of a group start and wait for operations in the same order and therefore select the same lanes.
class LaneSelector {
 public:
  static constexpr std::size_t kLanes = 2;
  enum class Kind : u8 { Sum, Gather };

  /// Returns the lane for an operation that starts now.
  std::size_t begin(Kind kind) {
    std::size_t lane = in_flight_[1][index(kind)] > 0 ? 1 : 0;
    if (in_flight_[lane][index(kind)] == 0 && !is_idle(lane)) lane = 1;
    ++in_flight_[lane][index(kind)];
    return lane;
  }
  /// Records that an operation of `kind` in `lane` was waited for.
  void end(std::size_t lane, Kind kind) { --in_flight_[lane][index(kind)]; }

 private:
  static std::size_t index(Kind kind) { return static_cast<std::size_t>(kind); }
  bool is_idle(std::size_t lane) const { return in_flight_[lane][0] + in_flight_[lane][1] == 0; }

  std::array<std::array<i64, 2>, kLanes> in_flight_{};  // by lane and kind
};

}  // namespace mcpp
