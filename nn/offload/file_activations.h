// Activations on a disk. What is put away is packed into one of a few buffers and written from there while forward goes
// on; backward finds it there still, or has it read back one ahead. The file is one ScratchFile, of blocks that are
// used again and again; each has its checksum in memory.
//
// Where copies to the host go on beside the computing, what they bring is written when the next is put away: the host
// is then one unit ahead of the device, and neither waits for the other.
#pragma once
#include <array>
#include <deque>

#include "base/io/file_region.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/activation_store.h"
#include "tensor/host/host_rooms.h"

namespace mcpp {

class FileActivations final : public ActivationStore {
 public:
  /// What is in memory at a time of what is away: two on their way out, one on its way back.
  static constexpr std::size_t kSlots = 3;
  static constexpr i64 kBlock = FileRegion::kPiece;

  /// `device`: of the activations; it outlives this. `copies`: its own.
  FileActivations(const ActivationOffload& offload, Device& device, std::unique_ptr<TransferQueue> queue,
                  std::unique_ptr<SideCopies> copies);
  ~FileActivations() override;

  std::unique_ptr<TensorsAway> put(std::vector<Tensor> tensors) override;
  std::string describe() const override;
  BytesAway peak() const override { return {.on_disk = peak_blocks_ * kBlock}; }

 private:
  class Away;
  /// Memory of the host for what one put() takes: free to be used, though it may still have what it held, or with
  /// transfers under way.
  struct Slot {
    enum class Use : u8 { Idle, Writing, Reading };
    Use use = Use::Idle;
    Away* holds = nullptr;
    PinnedTensor memory;
    std::vector<SideCopy> copies;  // to it, or back to the device
    std::vector<TransferQueue::Ticket> transfers;
    std::vector<i64> freed;  // blocks of what was given up while its transfers were under way
    u64 since = 0;           // counts up with each use
  };

  Slot* slot_with(const Away& away);
  /// An idle slot; waits for the oldest transfer when there is none. With room for so many bytes, and holding nothing.
  Slot& free_slot(i64 bytes);
  void wait(Slot& slot);
  /// Where something is inside what was put away.
  Tensor part_of(const Slot& slot, i64 offset, i64 bytes) const;
  /// What was put away last is written, if that has not begun.
  void write_last();
  void start(FileTransfer::Kind kind, Slot& slot, Away& away);
  void start_reading(Away& away);
  /// Where the bytes of what was put away are in memory.
  std::span<std::byte> bytes_of(const Slot& slot, const Away& away) const;
  std::vector<FileRegion> take_blocks(i64 bytes);
  void give_up(Away& away);
  void finish_what_was_given_up();

  Path folder_;
  std::shared_ptr<CpuDevice> host_;
  std::shared_ptr<ScratchFile> file_;
  std::vector<i64> free_blocks_;
  i64 blocks_ = 0, used_blocks_ = 0, peak_blocks_ = 0;
  std::array<Slot, kSlots> slots_;
  Slot* unwritten_ = nullptr;
  u64 uses_ = 0;
  std::unique_ptr<SideCopies> copies_;  // their destructors wait for what goes to and from the slots
  std::unique_ptr<TransferQueue> queue_;
};

}  // namespace mcpp
