// States offloaded to disk. A segment is read into memory for its update and written back. While one segment is
// updated, the next two are read and the previous one is written; the first segments of a step are prefetched during
// its forward pass. Memory holds only as many segments as the longest few, such as the embedding table.
//
// The file is one ScratchFile, in the order of the segments. Each vector of a segment has one region in the file. With
// snapshots it has two: a snapshot keeps one region while updates are written to the other. A save concurrent with
// training thus costs disk space, but no memory or extra I/O.
#pragma once
#include <deque>

#include "base/io/scratch_file.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/state_store.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

/// Part of a StateStore that keeps its segments on disk. Functions have the same names as in StateStore.
class FileStates {
 public:
  /// Segments in memory at a time: one in use, two prefetched, one being written.
  static constexpr i64 kSlots = 4;

  /// Keeps the segment in use in the memory of options.host.
  FileStates(StateStoreOptions options, std::unique_ptr<TransferQueue> queue);
  ~FileStates();

  void add(const std::vector<VectorSpec>& vectors);
  void reserve();
  void prefetch(const std::vector<std::size_t>& order);
  std::vector<Tensor> fetch(std::size_t segment);
  void drop(std::size_t segment);
  void release_clean(std::size_t segment);
  StoredArray stored(std::size_t segment, std::size_t vector);
  std::string describe() const { return file_->describe(bytes(), *queue_); }

  /// Returns the bytes that one step reads; it writes the same amount.
  i64 bytes() const;
  /// Returns the memory used for segments of the given sizes in bytes.
  static i64 memory_for(std::vector<i64> segments);

 private:
  class VectorBytes;
  /// Vector of a segment. A region shared with a second owner belongs to a snapshot.
  struct Vector {
    VectorSpec values;
    std::vector<std::shared_ptr<FileRegion>> regions = {};  // one, or two with snapshots
    std::size_t current = 0;

    i64 bytes() const { return aligned_bytes(values.bytes()); }
    FileRegion& region() const { return *regions[current]; }
  };
  using Segment = std::vector<Vector>;
  /// Buffer for one segment that is being read, in use or being written. The first slot fits the longest segment, the
  /// next one the second longest, and so on.
  struct Slot {
    enum class Use : u8 { Free, Reading, InUse, Writing };
    Use use = Use::Free;
    std::size_t segment = 0;
    i64 bytes = 0;        // capacity
    PinnedTensor memory;  // allocated on first use; holds the vectors consecutively
    std::vector<TransferQueue::Ticket> transfers;
  };

  Slot* slot_with(std::size_t segment);
  Slot& slot_in_use(std::size_t segment);
  bool has_capacity(const Slot& slot, std::size_t segment) const;
  /// Returns the smallest free slot except `kept` that fits the segment; waits for the oldest write if no slot is free.
  /// Returns null if all fitting slots are prefetched or in use.
  Slot* free_slot(std::size_t segment, const Slot* kept = nullptr);
  /// Returns the only slot that fits a segment needed soon after the next one, or null. This slot is reserved.
  /// Otherwise a shorter segment, which also fits in other slots, could occupy it, and reading the longer segment would
  /// have to wait until the shorter one was updated and written.
  const Slot* reserved_slot() const;
  /// Evicts a prefetched segment, which will be read again, and returns the smallest slot that fits `segment`.
  Slot& evict_prefetched_slot(std::size_t segment);
  void start_reading(Slot& slot, std::size_t segment);
  void read_ahead();
  void wait(Slot& slot);
  void finish_writes();
  /// Waits for all transfers and discards prefetched segments.
  void free_all_slots();
  void start(FileTransfer::Kind kind, Slot& slot, std::size_t vector);
  /// Returns the memory of a vector of the segment in the slot.
  Tensor part_of(const Slot& slot, std::size_t vector) const;
  static i64 length_of(const Segment& segment);
  /// Returns the sizes of the longest segments, one per slot, in descending order.
  static std::vector<i64> longest_of(std::vector<i64> segments);

  StateStoreOptions options_;
  std::vector<Segment> segments_;
  std::shared_ptr<ScratchFile> file_;
  std::deque<Slot> slots_;
  std::deque<Slot*> writing_;             // oldest first
  std::deque<std::size_t> expected_;      // segments to be prefetched, in order
  std::unique_ptr<TransferQueue> queue_;  // last member: its destructor waits for transfers of the slots
};

}  // namespace mcpp
