// Shared memory of the ranks of one node, with a barrier. Reductions through this memory are several times faster than
// MPI_Allreduce on a CPU, and their summation order is defined.
#pragma once
#include <atomic>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Shared-memory window with a metadata block and two slots of kSlotBytes per rank. Alternating between the two halves
/// lets a rank fill one half while a slower rank still reads the other.
class SharedWindow {
 public:
  static constexpr i64 kSlotBytes = i64{1} << 20;  ///< about the size of an L2 cache; 64 ranks share 128 MiB

  /// Collective over `node`, whose ranks must be able to share memory.
  SharedWindow(const MpiComm& node, WaitPolicy wait_policy);
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(slots_.size()); }
  /// Returns the slot of a rank of the node in the current half.
  std::byte* slot(int rank) const { return slots_[rank] + half_ * kSlotBytes; }
  /// Returns the number of elements of `bytes` bytes per part that fit in a slot with `parts` parts. Throws if it is 0.
  static i64 elements_in_slot(i64 bytes, int parts) {
    MCPP_CHECK(bytes * parts <= kSlotBytes, parts, " ranks are too many for the shared memory window");
    return kSlotBytes / bytes / parts;
  }
  /// Size of the metadata block of a rank, which both halves share.
  static constexpr i64 kMetadataBytes = 64;
  void* metadata(int rank) const { return slots_[rank] - kMetadataBytes; }
  /// Waits for all ranks of the node and makes their earlier writes visible. Sleeps in the kernel, waking periodically
  /// to progress the messages of this rank.
  void barrier();
  /// Switches to the other half. There must be a barrier between two uses of a half.
  void next_round() { half_ = 1 - half_; }

 private:
  struct Barrier {
    std::atomic<u32> arrived;
    std::atomic<u32> generation;
    std::atomic<u32> sleepers;
  };

  int rank_;
  WaitPolicy wait_policy_;
  MPI_Win window_ = MPI_WIN_NULL;
  Barrier* barrier_ = nullptr;
  std::vector<std::byte*> slots_;
  int half_ = 0;
};

}  // namespace mcpp
