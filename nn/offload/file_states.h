// States on a disk. A segment comes into memory for its update and goes back: while one is updated the next two are
// read and the one before is written, and the first of a step are read during its forward pass. The memory for them is
// as long as the longest segments together: there are few of these, as the vocabulary's table among weights.
//
// The file is one ScratchFile, in the order of the segments. Each segment has a place for each of its vectors; with
// snapshots two, of which a snapshot keeps one while updates go to the other: so a save beside the training costs disk
// space, and neither memory nor traffic.
#pragma once
#include <deque>

#include "base/io/file_region.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/state_store.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

struct FileStatesOptions {
  Path folder;
  std::string key;  ///< of the configuration, which named the folder
  i64 longest_segment = i64{4} << 20;
  bool takes_snapshots = false;
  std::string what = "the optimizer's state";  ///< for messages
  MemoryClass memory_class = MemoryClass::OptimizerState;
  /// Those that what it keeps goes to and comes from, for which it pins its memory; they go before the store does.
  SideCopies* copies = nullptr;
};

class FileStates final : public StateStore {
 public:
  /// Segments that are in memory at a time: one in use, two read ahead, one on its way out.
  static constexpr i64 kSlots = 4;

  /// `host` has the memory in which segments are updated.
  FileStates(FileStatesOptions options, std::shared_ptr<CpuDevice> host, std::unique_ptr<TransferQueue> queue);
  ~FileStates() override;

  i64 longest_segment() const override { return options_.longest_segment; }
  void add(const std::vector<StateVector>& states) override;
  void reserve() override;
  void expect(const std::vector<std::size_t>& order) override;
  std::vector<Tensor> fetch(std::size_t segment) override;
  void drop(std::size_t segment) override;
  void drop_unchanged(std::size_t segment) override;
  bool is_resident() const override { return false; }
  std::shared_ptr<StoredNumbers> at_rest(std::size_t segment, std::size_t vector, i64 first, i64 count) override;
  BytesAway bytes_away() const override { return {.on_disk = bytes()}; }
  std::string describe() const override;

  /// What one step reads; it writes as much.
  i64 bytes() const;
  /// The memory that it comes to use for segments of so many bytes each.
  static i64 memory_for(std::vector<i64> segments);

 private:
  class AtRest;
  class Snapshot;
  /// A vector of a segment. A place that somebody else refers to as well is kept by a snapshot.
  struct Vector {
    StateVector what;
    std::vector<std::shared_ptr<FileRegion>> places = {};  // one or two
    std::size_t current = 0;

    i64 bytes() const { return aligned_bytes(what.bytes()); }
    FileRegion& region() const { return *places[current]; }
  };
  using Segment = std::vector<Vector>;
  /// Memory for one segment: on its way in, in use, or on its way out. The first has room for the longest segment, the
  /// next for the second longest, and so on.
  struct Slot {
    enum class Use : u8 { Free, Reading, InUse, Writing };
    Use use = Use::Free;
    std::size_t segment = 0;
    i64 bytes = 0;        // that it has room for
    PinnedTensor memory;  // from its first use on; vectors one after the other
    std::vector<TransferQueue::Ticket> transfers;
  };

  Slot* slot_with(std::size_t segment);
  Slot& slot_in_use(std::size_t segment);
  bool has_room(const Slot& slot, std::size_t segment) const;
  /// The shortest free slot but `kept` that has room for a segment; waits for the oldest write when there is none. Null
  /// when all that have are read ahead or in use.
  Slot* free_slot(std::size_t segment, const Slot* kept = nullptr);
  /// The only slot with room for what is read soon after the segment that is next, or null: so that this does not wait
  /// until a short one, which has room elsewhere, was updated and written.
  const Slot* kept_slot() const;
  /// Of a segment that was read ahead and is to be read again: the shortest slot with room for another.
  Slot& slot_taken_back(std::size_t segment);
  void start_reading(Slot& slot, std::size_t segment);
  void read_ahead();
  void wait(Slot& slot);
  void finish_writes();
  /// Waits for everything, and forgets what was read ahead.
  void free_all_slots();
  void start(FileTransfer::Kind kind, Slot& slot, std::size_t vector);
  /// The memory of a vector of the segment that is in the slot.
  Tensor part_of(const Slot& slot, std::size_t vector) const;
  static i64 length_of(const Segment& segment);
  /// Of all segments, longest first, as many as there are slots.
  static std::vector<i64> longest_of(std::vector<i64> segments);

  FileStatesOptions options_;
  std::shared_ptr<CpuDevice> host_;
  std::vector<Segment> segments_;
  std::shared_ptr<ScratchFile> file_;
  std::deque<Slot> slots_;
  std::deque<Slot*> writing_;             // oldest first
  std::deque<std::size_t> expected_;      // to be read ahead, in order
  std::unique_ptr<TransferQueue> queue_;  // last: its destructor waits for transfers of the slots
};

/// For weights that are used on `device`, which outlives them: they are updated in its memory if it is of the CPU, else
/// in the host's, by that many threads.
std::unique_ptr<StateStore> make_file_states(FileStatesOptions options, Device& device, int threads);

}  // namespace mcpp
