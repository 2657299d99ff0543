#include "nn/offload/file_activations.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
#include "nn/offload/host_memory.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr i64 kPackingAlignment = 64;  // alignment of packed tensors, in bytes
constexpr const char* kContentName = "the activations";

i64 packed_bytes(const Tensor& t) {
  return round_up(t.bytes(), kPackingAlignment);
}

}  // namespace

class FileActivations::OffloadedBatch final : public OffloadedTensors {
 public:
  /// Location of a tensor inside the packed buffer.
  struct Packed {
    i64 offset;
    Shape shape;
    DType dtype;
    Device& device;
  };

  OffloadedBatch(FileActivations& store, const std::vector<Tensor>& tensors) : store_(store) {
    for (const Tensor& t : tensors) {
      packed_.push_back({bytes_, t.shape(), t.dtype(), t.device()});
      bytes_ += packed_bytes(t);
    }
    bytes_ = aligned_bytes(bytes_);
  }
  ~OffloadedBatch() override { store_.discard(*this); }

  void prefetch() override {
    store_.write_last();
    if (!store_.slot_with(*this)) store_.start_reading(*this);
  }
  std::vector<Tensor> take() override;

  i64 bytes() const { return bytes_; }
  const std::vector<Packed>& packed() const { return packed_; }

  std::vector<FileRegion> blocks;  // in the file

 private:
  FileActivations& store_;
  std::vector<Packed> packed_;
  i64 bytes_ = 0;
};

std::vector<Tensor> FileActivations::OffloadedBatch::take() {
  prefetch();
  Slot& slot = *store_.slot_with(*this);
  const std::span<std::byte> all = store_.bytes_of(slot, *this);
  if (slot.use == Slot::Use::Reading) {
    store_.wait(slot);
    for (std::size_t b = 0; b < blocks.size(); ++b)
      blocks[b].verify(all.subspan(b * kBlock, static_cast<std::size_t>(blocks[b].bytes())));
  }
  std::vector<Tensor> tensors;
  for (const Packed& p : packed_) {
    const Tensor& reloaded = tensors.emplace_back(Tensor::empty(p.shape, p.dtype, p.device));
    slot.copies.push_back(store_.copy_engine_->to_device(store_.part_of(slot, p.offset, reloaded.bytes()), reloaded));
    slot.copies.back().make_stream_wait();
  }
  return tensors;
}

FileActivations::FileActivations(const ActivationOffload& offload, Device& device, std::unique_ptr<TransferQueue> queue,
                                 std::unique_ptr<AsyncCopyEngine> copies)
    : host_(host_device_for(device)),
      file_(std::make_shared<ScratchFile>(offload.folder, round_up(std::max<i64>(offload.bytes, 1), kBlock),
                                          offload.key)),
      copy_engine_(std::move(copies)),
      queue_(std::move(queue)) {
  blocks_ = file_->bytes() / kBlock;
  for (i64 block = blocks_; block > 0; --block) free_blocks_.push_back((block - 1) * kBlock);
}

FileActivations::~FileActivations() = default;

FileActivations::Slot* FileActivations::slot_with(const OffloadedBatch& offloaded) {
  const auto it = std::ranges::find(slots_, &offloaded, &Slot::holds);
  return it == slots_.end() ? nullptr : &*it;
}

std::span<std::byte> FileActivations::bytes_of(const Slot& slot, const OffloadedBatch& offloaded) const {
  return host_bytes(slot.memory.tensor).first(static_cast<std::size_t>(offloaded.bytes()));
}

Tensor FileActivations::part_of(const Slot& slot, i64 offset, i64 bytes) const {
  const i64 item = size_of(slot.memory.tensor.dtype());
  return slot.memory.tensor.flat(offset / item, bytes / item);
}

FileActivations::Slot& FileActivations::free_slot(i64 bytes) {
  // Prefers idle slots to busy ones, then slots being written out to reloaded ones, then the least recently used.
  const auto cost = [](const Slot& slot) { return std::make_tuple(slot.use, slot.holds != nullptr, slot.last_use); };
  Slot& slot = *std::ranges::min_element(slots_, {}, cost);
  wait(slot);
  slot.holds = nullptr;
  slot.last_use = ++uses_;
  Tensor& memory = slot.memory.tensor;
  if (memory.defined() && memory.bytes() >= bytes) return slot;
  slot.memory.pin = nullptr;
  memory = Tensor();  // freed before it is reallocated
  slot.memory = allocate_transfer_buffer(bytes, *host_, MemoryClass::Activations, copy_engine_.get());
  return slot;
}

void FileActivations::wait(Slot& slot) {
  const bool is_write = slot.use == Slot::Use::Writing;
  slot.use = Slot::Use::Idle;
  for (AsyncCopy& copy : slot.copies) copy.wait();
  slot.copies.clear();
  const int error = queue_->wait_all(std::exchange(slot.transfers, {}));
  for (const i64 block : std::exchange(slot.freed, {})) free_blocks_.push_back(block);
  if (error == 0 || !slot.holds) return;  // errors of discarded data are ignored
  file_->throw_transfer_error(is_write ? "write" : "read", error, kContentName);
}

void FileActivations::start(FileTransfer::Kind kind, Slot& slot, OffloadedBatch& offloaded) {
  slot.use = kind == FileTransfer::Kind::Write ? Slot::Use::Writing : Slot::Use::Reading;
  slot.holds = &offloaded;
  std::byte* data = bytes_of(slot, offloaded).data();
  for (const FileRegion& block : offloaded.blocks) {
    slot.transfers.push_back(queue_->start(block.transfer(kind, data)));
    data += block.bytes();
  }
}

void FileActivations::start_reading(OffloadedBatch& offloaded) {
  start(FileTransfer::Kind::Read, free_slot(offloaded.bytes()), offloaded);
}

void FileActivations::reclaim_dropped_blocks() {
  for (Slot& slot : slots_) {
    if (!slot.freed.empty()) wait(slot);
  }
}

/// Allocates blocks, growing the file if all blocks are in use.
std::vector<FileRegion> FileActivations::take_blocks(i64 bytes) {
  std::vector<FileRegion> blocks;
  for (i64 at = 0; at < bytes; at += kBlock) {
    if (free_blocks_.empty()) reclaim_dropped_blocks();
    if (free_blocks_.empty()) {
      if (const int error = file_->extend(kBlock); error != 0)
        file_->throw_transfer_error("extend", error, kContentName);
      free_blocks_.push_back(blocks_++ * kBlock);
    }
    blocks.emplace_back(file_, free_blocks_.back(), std::min(kBlock, bytes - at), "a block of activations");
    free_blocks_.pop_back();
  }
  used_blocks_ += static_cast<i64>(blocks.size());
  peak_blocks_ = std::max(peak_blocks_, used_blocks_);
  return blocks;
}

std::unique_ptr<OffloadedTensors> FileActivations::put(std::vector<Tensor> tensors) {
  write_last();
  auto offloaded = std::make_unique<OffloadedBatch>(*this, tensors);
  Slot& slot = free_slot(offloaded->bytes());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    slot.copies.push_back(
        copy_engine_->to_host(tensors[i], part_of(slot, offloaded->packed()[i].offset, tensors[i].bytes())));
  offloaded->blocks = take_blocks(offloaded->bytes());
  slot.holds = offloaded.get();
  unwritten_ = &slot;
  if (copy_engine_->is_synchronous()) write_last();
  return offloaded;
}

void FileActivations::write_last() {
  if (!unwritten_) return;
  Slot& slot = *std::exchange(unwritten_, nullptr);
  wait(slot);
  OffloadedBatch& offloaded = *slot.holds;
  const std::span<std::byte> all = bytes_of(slot, offloaded);
  for (std::size_t b = 0; b < offloaded.blocks.size(); ++b)
    offloaded.blocks[b].record_checksums(
        all.subspan(b * kBlock, static_cast<std::size_t>(offloaded.blocks[b].bytes())));
  start(FileTransfer::Kind::Write, slot, offloaded);
}

/// Does not wait: blocks with transfers in flight are freed when these complete.
void FileActivations::discard(OffloadedBatch& offloaded) {
  Slot* slot = slot_with(offloaded);
  if (slot == unwritten_) unwritten_ = nullptr;
  std::vector<i64>& freed = slot && slot->use != Slot::Use::Idle ? slot->freed : free_blocks_;
  for (const FileRegion& block : offloaded.blocks) freed.push_back(block.offset());
  used_blocks_ -= static_cast<i64>(offloaded.blocks.size());
  if (slot) slot->holds = nullptr;
}

}  // namespace mcpp
