// Activations offloaded to disk. Tensors offloaded together are packed into one of a few buffers and written from there
// while forward continues. Backward finds them still in memory, or reads them back one unit ahead. The file is one
// ScratchFile of reusable blocks, whose checksums are kept in memory.
//
// If copies to the host are asynchronous, each unit is written when the next one is offloaded. The host then runs one
// unit ahead of the device, and neither waits for the other.
#pragma once
#include <array>
#include <deque>

#include "base/io/scratch_file.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/activation_store.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

class FileActivations final : public ActivationStore {
 public:
  /// Number of buffers: two being written, one being read.
  static constexpr std::size_t kSlots = 3;
  static constexpr i64 kBlock = FileRegion::kChunk;

  /// `device` holds the activations. `copies` is used by this store only.
  FileActivations(const ActivationOffload& offload, Device& device, std::unique_ptr<TransferQueue> queue,
                  std::unique_ptr<AsyncCopyEngine> copies);
  ~FileActivations() override;

  std::unique_ptr<OffloadedTensors> put(std::vector<Tensor> tensors) override;
  std::string describe() const override { return file_->describe(blocks_ * kBlock, *queue_); }
  OffloadedBytes peak() const override { return {.on_disk = peak_blocks_ * kBlock}; }

 private:
  class OffloadedBatch;
  /// Host buffer for the tensors of one put(). An idle slot may be reused, although it may still hold earlier data.
  struct Slot {
    enum class Use : u8 { Idle, Writing, Reading };
    Use use = Use::Idle;
    OffloadedBatch* holds = nullptr;
    PinnedTensor memory;
    std::vector<AsyncCopy> copies;  // to the slot, or back to the device
    std::vector<TransferQueue::Ticket> transfers;
    std::vector<i64> freed;  // blocks of data discarded while its transfers were in flight
    u64 last_use = 0;        // sequence number
  };

  Slot* slot_with(const OffloadedBatch& offloaded);
  /// Returns an idle, empty slot of at least `bytes` bytes; waits for the oldest transfer if necessary.
  Slot& free_slot(i64 bytes);
  void wait(Slot& slot);
  /// Returns a byte range of the packed buffer as a tensor.
  Tensor part_of(const Slot& slot, i64 offset, i64 bytes) const;
  /// Starts writing the tensors offloaded last, unless writing them has already begun.
  void write_last();
  void start(FileTransfer::Kind kind, Slot& slot, OffloadedBatch& offloaded);
  void start_reading(OffloadedBatch& offloaded);
  /// Returns the bytes of the packed tensors in the slot.
  std::span<std::byte> bytes_of(const Slot& slot, const OffloadedBatch& offloaded) const;
  std::vector<FileRegion> take_blocks(i64 bytes);
  void discard(OffloadedBatch& offloaded);
  void reclaim_dropped_blocks();

  std::shared_ptr<CpuDevice> host_;
  std::shared_ptr<ScratchFile> file_;
  std::vector<i64> free_blocks_;
  i64 blocks_ = 0, used_blocks_ = 0, peak_blocks_ = 0;
  std::array<Slot, kSlots> slots_;
  Slot* unwritten_ = nullptr;
  u64 uses_ = 0;
  std::unique_ptr<AsyncCopyEngine> copy_engine_;  // declared after the slots: its destructor waits for their transfers
  std::unique_ptr<TransferQueue> queue_;
};

}  // namespace mcpp
