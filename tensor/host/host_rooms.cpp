#include "tensor/host/host_rooms.h"

#include "base/rounding.h"

namespace mcpp {

PinnedTensor pinned_tensor(const Shape& shape, DType dtype, CpuDevice& host, MemoryClass c, SideCopies& copies) {
  constexpr i64 kPage = 4096;
  if (copies.are_immediate() || numel(shape) == 0) return {.tensor = Tensor::empty(shape, dtype, host, c)};
  const i64 size = size_of(dtype), count = numel(shape), bytes = round_up(count * size, kPage);
  const Tensor whole = Tensor::empty({(bytes + kPage) / size}, dtype, host, c);
  const auto over = static_cast<i64>(reinterpret_cast<std::uintptr_t>(whole.raw()) % kPage);
  const Tensor pages = whole.flat(over == 0 ? 0 : (kPage - over) / size, bytes / size);
  return {.tensor = pages.flat(0, count).view(shape), .pin = copies.pin(pages.raw(), bytes)};
}

std::shared_ptr<const Tensor> HostRooms::take(const Shape& shape, DType dtype) {
  PinnedTensor room;
  const std::pair<DType, i64> kind{dtype, numel(shape)};
  {
    const std::lock_guard lock(pool_->mutex);
    std::vector<PinnedTensor>& free = pool_->free[kind];
    if (!free.empty()) {
      room = std::move(free.back());
      free.pop_back();
    }
  }
  if (!room.tensor.defined()) room = pinned_tensor(shape, dtype, pool_->host, pool_->memory_class, pool_->copies);
  auto tensor = std::make_unique<const Tensor>(room.tensor.view(shape));
  return {tensor.release(), [pool = pool_, kind, room](const Tensor* used) {
            delete used;
            if (!room.pin) return;  // the device pools unpinned memory
            const std::lock_guard lock(pool->mutex);
            pool->free[kind].push_back(room);
          }};
}

}  // namespace mcpp
