#include "tensor/host/pinned_buffer_pool.h"

#include "base/integer_math.h"

namespace mcpp {

PinnedTensor pinned_tensor(const Shape& shape, DType dtype, CpuDevice& host, MemoryClass c, AsyncCopyEngine& copies) {
  constexpr i64 kPage = 4096;
  if (copies.is_synchronous() || numel(shape) == 0) return {.tensor = Tensor::empty(shape, dtype, host, c)};
  const i64 size = size_of(dtype), count = numel(shape), bytes = round_up(count * size, kPage);
  const Tensor padded = Tensor::empty({(bytes + kPage) / size}, dtype, host, c);
  const auto excess = static_cast<i64>(reinterpret_cast<std::uintptr_t>(padded.raw()) % kPage);
  const Tensor pages = padded.flat(excess == 0 ? 0 : (kPage - excess) / size, bytes / size);
  return {.tensor = pages.flat(0, count).view(shape), .pin = copies.pin(pages.raw(), bytes)};
}

std::shared_ptr<const Tensor> PinnedBufferPool::take(const Shape& shape, DType dtype) {
  PinnedTensor buffer;
  const std::pair<DType, i64> kind{dtype, numel(shape)};
  {
    const std::lock_guard lock(pool_->mutex);
    std::vector<PinnedTensor>& free = pool_->free[kind];
    if (!free.empty()) {
      buffer = std::move(free.back());
      free.pop_back();
    }
  }
  if (!buffer.tensor.defined()) buffer = pinned_tensor(shape, dtype, pool_->host, pool_->memory_class, pool_->copies);
  auto tensor = std::make_unique<const Tensor>(buffer.tensor.view(shape));
  return {tensor.release(), [pool = pool_, kind, buffer](const Tensor* used) {
            delete used;
            if (!buffer.pin) return;  // the device pools unpinned memory
            const std::lock_guard lock(pool->mutex);
            pool->free[kind].push_back(buffer);
          }};
}

}  // namespace mcpp
