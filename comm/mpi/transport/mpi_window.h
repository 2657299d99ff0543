// Memory that the ranks of one node share, and a barrier in it. Reductions through it are several times faster than
// MPI_Allreduce on a CPU, and their order is ours.
#pragma once
#include <atomic>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Each rank has a card to tell the others something on, and a slot of kSlotBytes, twice: use alternates between the
/// halves, so that a rank may fill the next half while a slower one still reads the last.
class SharedWindow {
 public:
  static constexpr i64 kSlotBytes = i64{1} << 20;  ///< about the second-level cache; 64 ranks share 128 MiB

  /// Called by all ranks of `node`, which share memory.
  SharedWindow(const MpiComm& node, Patience patience);
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(slots_.size()); }
  /// The slot of a rank of the node, in the half of this round.
  std::byte* slot(int rank) const { return slots_[rank] + half_ * kSlotBytes; }
  /// How many of so many bytes of each of `parts` a slot holds: at least one.
  static i64 elements_in_slot(i64 bytes, int parts) {
    MCPP_CHECK(bytes * parts <= kSlotBytes, parts, " ranks are too many for the shared memory window");
    return kSlotBytes / bytes / parts;
  }
  /// kCardBytes of a rank of the node, the same in both halves.
  static constexpr i64 kCardBytes = 64;
  void* card(int rank) const { return slots_[rank] - kCardBytes; }
  /// Waits until all ranks of the node are here; what they wrote before is then seen. Sleeps in the kernel, and wakes
  /// now and then for the messages that this rank has on their way.
  void barrier();
  /// Turns to the other half. Between two uses of a half there must be a barrier.
  void next_round() { half_ = 1 - half_; }

 private:
  struct Barrier {
    std::atomic<u32> arrived;
    std::atomic<u32> generation;
    std::atomic<u32> sleepers;
  };

  int rank_;
  Patience patience_;
  MPI_Win window_ = MPI_WIN_NULL;
  Barrier* barrier_ = nullptr;
  std::vector<std::byte*> slots_;
  int half_ = 0;
};

}  // namespace mcpp
