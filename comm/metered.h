// Counts what a group sends and how long its rank is kept from computing, and notes each operation for those who look
// for the reason of a hang.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/watch/flight_recorder.h"
#include "tensor/host/device_waits.h"

namespace mcpp {

enum class CommOp : u8 { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, Send, Recv, Barrier };
inline constexpr std::size_t kCommOps = 8;
/// "all_reduce" and so on.
std::string_view name_of(CommOp op);

/// Operations of one group, as one rank sees them since the start or reset().
struct CommMeter {
  struct Count {
    i64 calls = 0;
    /// What a rank sends when the operation uses the network best, for n bytes of the whole tensor in a group of d:
    /// all-reduce 2 n (d - 1) / d, all-gather, reduce-scatter and all-to-all n (d - 1) / d, of uneven parts those for
    /// others, broadcast and send n, receive and barrier 0. Each call rounded down; alone in a group, a rank sends
    /// nothing.
    i64 bytes = 0;
  };
  std::array<Count, kCommOps> by_op{};
  /// Inside calls and wait(), or of `waits`, if any, what these keep the device waiting for, told a little later:
  /// communication that no computation of this rank hid.
  double exposed_seconds = 0;
  std::shared_ptr<DeviceWaits> waits = nullptr;

  /// What is told of each call and wait(); the profiler, if any, outlives the group.
  Profiler* profiler = nullptr;
  RangeKind kind = RangeKind::Communication;
  std::string group = {};       ///< its name
  std::vector<int> ranks = {};  ///< its ranks, of the world; empty: not known

  Count& operator[](CommOp op) { return by_op[static_cast<std::size_t>(op)]; }
  const Count& operator[](CommOp op) const { return by_op[static_cast<std::size_t>(op)]; }
  i64 total_bytes() const;
  void reset() { by_op = {}, exposed_seconds = 0; }
};

/// `inner`, whose operations are entered in `meter`, and in the recorder of `log`, by the thread that calls them.
/// Groups split off from it are neither metered nor noted. Works may outlive the group.
std::unique_ptr<Communicator> make_metered(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter,
                                           GroupLog log = {});

}  // namespace mcpp
