// Communicator decorator that counts bytes and exposed time and logs every operation in a flight recorder.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/contribution_log.h"
#include "comm/watchdog/flight_recorder.h"
#include "tensor/host/device_wait_timer.h"

namespace mcpp {

enum class CommOp : u8 { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, Send, Recv, Barrier };
inline constexpr std::size_t kCommOps = 8;
/// Returns the name of the operation, e.g. "all_reduce".
std::string_view name_of(CommOp op);

/// Communication statistics of one group on one rank since construction or reset().
struct CommMeter {
  struct Count {
    i64 calls = 0;
    /// Bytes that a rank sends with a bandwidth-optimal algorithm, for n bytes of the full tensor and d ranks.
    /// All-reduce: 2 n (d - 1) / d. All-gather, reduce-scatter and all-to-all: n (d - 1) / d, or with uneven parts the
    /// bytes of parts for other ranks. Broadcast and send: n. Receive and barrier: 0. Each call is rounded down; 0 in a
    /// group of one rank.
    i64 bytes = 0;
  };
  std::array<Count, kCommOps> by_op{};
  /// Time spent in calls and in wait(), i.e. not overlapped with computation. With `waits`, the wait time measured on
  /// the device, which becomes available with a delay.
  double exposed_seconds = 0;
  std::shared_ptr<DeviceWaitTimer> waits = nullptr;

  /// Receives a range for each call and wait(); may be null.
  Profiler* profiler = nullptr;
  RangeKind kind = RangeKind::Communication;
  std::string group = {};       ///< name of the group
  std::vector<int> ranks = {};  ///< world ranks of the group; empty if unknown
  /// Receives a checksum of what this rank contributes to each operation; null if nothing is recorded.
  ContributionLog* contributions = nullptr;

  Count& operator[](CommOp op) { return by_op[static_cast<std::size_t>(op)]; }
  const Count& operator[](CommOp op) const { return by_op[static_cast<std::size_t>(op)]; }
  i64 total_bytes() const;
  void reset() { by_op = {}, exposed_seconds = 0; }
};

/// Wraps `inner` so that its operations are recorded in `meter` and in the recorder of `log` by the calling thread.
/// Groups created by split() are neither metered nor logged. Works may outlive the group.
std::unique_ptr<Communicator> make_metered(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter,
                                           GroupLog log = {});

}  // namespace mcpp
