// States offloaded to disk. A segment is read into memory for its update and written back. While one segment is
// updated, the next two are read and the previous one is written; the first segments of a step are prefetched during
// its forward pass. The memory used is that of the few longest segments, such as the embedding table among the weights.
//
// The file is one ScratchFile, in the order of the segments. Each vector of a segment has one region in it. With
// snapshots it has two: a snapshot keeps one while updates go to the other, so that a save concurrent with training
// costs disk space but no memory or extra I/O.
#pragma once
#include <deque>

#include "base/io/file_region.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/state_store.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

struct FileStatesOptions {
  Path folder;
  std::string key;  ///< configuration key that named the folder
  i64 longest_segment = i64{4} << 20;
  bool supports_snapshots = false;
  std::string what = "the optimizer's state";  ///< name of the content in messages
  MemoryClass memory_class = MemoryClass::OptimizerState;
  /// Copy engine that transfers the stored data, for which memory is pinned. May be destroyed before the store.
  AsyncCopyEngine* copies = nullptr;
};

class FileStates final : public StateStore {
 public:
  /// Segments in memory at a time: one in use, two prefetched, one being written.
  static constexpr i64 kSlots = 4;

  /// `host` owns the memory in which segments are updated.
  FileStates(FileStatesOptions options, std::shared_ptr<CpuDevice> host, std::unique_ptr<TransferQueue> queue);
  ~FileStates() override;

  i64 longest_segment() const override { return options_.longest_segment; }
  void add(const std::vector<StateVector>& states) override;
  void reserve() override;
  void prefetch(const std::vector<std::size_t>& order) override;
  std::vector<Tensor> fetch(std::size_t segment) override;
  void drop(std::size_t segment) override;
  void release_clean(std::size_t segment) override;
  bool is_resident() const override { return false; }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) override;
  OffloadedBytes offloaded_bytes() const override { return {.on_disk = bytes()}; }
  std::string describe() const override;

  /// Returns the bytes that one step reads; it writes the same amount.
  i64 bytes() const;
  /// Returns the memory used for segments of the given sizes in bytes.
  static i64 memory_for(std::vector<i64> segments);

 private:
  class StoredView;
  class Snapshot;
  /// Vector of a segment. A region shared with a second owner belongs to a snapshot.
  struct Vector {
    StateVector state;
    std::vector<std::shared_ptr<FileRegion>> regions = {};  // one, or two with snapshots
    std::size_t current = 0;

    i64 bytes() const { return aligned_bytes(state.bytes()); }
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
  /// Returns the only slot that fits a segment needed soon after the next one, or null. It is reserved so that reading
  /// that segment need not wait until a shorter one, which fits in other slots, was updated and written.
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

  FileStatesOptions options_;
  std::shared_ptr<CpuDevice> host_;
  std::vector<Segment> segments_;
  std::shared_ptr<ScratchFile> file_;
  std::deque<Slot> slots_;
  std::deque<Slot*> writing_;             // oldest first
  std::deque<std::size_t> expected_;      // segments to be prefetched, in order
  std::unique_ptr<TransferQueue> queue_;  // last: its destructor waits for transfers of the slots
};

/// Creates a store for weights used on `device`. States are updated in the memory of `device` if it is a CPU device,
/// otherwise in host memory by `threads` threads.
std::unique_ptr<StateStore> make_file_states(FileStatesOptions options, Device& device, int threads);

}  // namespace mcpp
