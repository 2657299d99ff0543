// NCCL backend: one GPU per rank.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "base/types.h"
#include "comm/communicator.h"

namespace mcpp {

/// Returns the version of NCCL, such as "2.28.9". Defined only in CUDA builds (kWithCuda).
std::string nccl_version();

/// Creates a group of the ranks of `host`, for tensors of `device` and, through `host`, for tensors in host memory.
/// Collective over `host`, which also carries NCCL's ids. Groups created by split() use NCCL as well. Defined only in
/// CUDA builds (kWithCuda).
///
/// Operations run on streams of the group, ordered after the work queued on the device's compute stream so far; wait()
/// makes the compute stream wait but does not block the host. NCCL chooses the summation order by layout and size:
/// results are bitwise identical between runs of one layout, but may differ from other backends. bf16 and fp16 sums are
/// rounded at each hop.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Device& device);

// Assignment of operations to the queues of a group, so that weight all-gathers do not wait behind gradient reductions.

/// Selector of one of two lanes for two kinds of operations. An operation uses the lane in which its kind is in flight,
/// or else the first idle lane. Groups that wait for every operation before the next one therefore use only one lane.
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

  std::array<std::array<i64, 2>, kLanes> in_flight_{};  // number of operations in flight, indexed by lane and kind
};

}  // namespace mcpp
