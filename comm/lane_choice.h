// Which of a group's queues an operation takes, so that gathers of weights do not wait behind sums of gradients.
#pragma once
#include <array>
#include <cstddef>

#include "base/types.h"

namespace mcpp {

/// Two lanes for two kinds of operations. One goes behind those of its kind that are in flight; where there are none,
/// into the first lane in which nothing is: groups whose operations are waited for one by one have one lane only.
///
/// Every rank of a group starts and waits for its operations in the same order, and so finds the same lanes.
class LaneChoice {
 public:
  static constexpr std::size_t kLanes = 2;
  enum class Kind : u8 { Sum, Gather };

  /// The lane of an operation that starts now.
  std::size_t begin(Kind kind) {
    std::size_t lane = in_flight_[1][index(kind)] > 0 ? 1 : 0;
    if (in_flight_[lane][index(kind)] == 0 && !is_idle(lane)) lane = 1;
    ++in_flight_[lane][index(kind)];
    return lane;
  }
  /// One of this kind in this lane has been waited for.
  void end(std::size_t lane, Kind kind) { --in_flight_[lane][index(kind)]; }

 private:
  static std::size_t index(Kind kind) { return static_cast<std::size_t>(kind); }
  bool is_idle(std::size_t lane) const { return in_flight_[lane][0] + in_flight_[lane][1] == 0; }

  std::array<std::array<i64, 2>, kLanes> in_flight_{};  // by kind
};

}  // namespace mcpp
