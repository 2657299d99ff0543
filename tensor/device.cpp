#include "tensor/device.h"

#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/strings.h"
#include "tensor/device_pool.h"
#include "tensor/memory_arena.h"
#include "tensor/out_of_memory.h"

namespace mcpp {

std::string_view name_of(MemoryClass c) {
  static constexpr std::array<std::string_view, kMemoryClasses> kNames{
      "parameters", "gradients", "optimizer state", "activations", "workspace", "other", "recorded passes"};
  return kNames[static_cast<std::size_t>(c)];
}

std::string MemoryTable::to_string() const {
  std::string text;
  const auto add_row = [&](std::string_view name, const MemoryUse& use) {
    std::string row = str("  ", name);
    row.resize(20, ' ');
    text += str(row, human_bytes(static_cast<double>(use.bytes)), " (peak ", human_bytes(static_cast<double>(use.peak)),
                ")\n");
  };
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    if (by_class[c].peak > 0) add_row(name_of(static_cast<MemoryClass>(c)), by_class[c]);
  }
  add_row("total", total);
  return text;
}

Device::Device(DeviceType type) : type_(type), pool_(std::make_unique<Pool>()) {}

Device::~Device() = default;

void* Device::allocate(i64 bytes, MemoryClass c) {
  if (bytes <= 0) return nullptr;
  const i64 size = padded_alloc_size(bytes);
  const std::lock_guard lock(pool_->mutex);
  if (MemoryArena* const arena = pool_->active_arena()) return arena->allocate(size, bytes, c);
  return take(size, bytes, c);
}

/// Returns a block of `size` bytes of the pool or of the system, for a request of `bytes`. The caller holds the lock of
/// the pool.
void* Device::take(i64 size, i64 bytes, MemoryClass c) {
  void* data = Pool::pop(pool_->free_blocks, size);
  if (!data) data = system_allocate(size);
  if (!data) {
    free_pool();
    data = system_allocate(size);
  }
  if (!data) fail(ExitCode::OutOfMemory, out_of_memory_text({bytes, c}, memory_, system_memory(*this)));
  update_usage(c, size);
  return data;
}

void Device::release(void* data, i64 bytes, MemoryClass c) noexcept {
  if (!data) return;
  const i64 size = padded_alloc_size(bytes);
  const std::lock_guard lock(pool_->mutex);
  if (const auto it = pool_->arenas.find(data); it != pool_->arenas.end()) return it->second->release(data, size, c);
  if (MemoryArena* const arena = pool_->active_arena()) arena->note_foreign_release();
  pool_->free_blocks[size].push_back(data);
  update_usage(c, -size);
}

void Device::trim() {
  const std::lock_guard lock(pool_->mutex);
  free_pool();
}

void Device::reset_peak() {
  for (MemoryUse& use : memory_.by_class) use.peak = use.bytes;
  memory_.total.peak = memory_.total.bytes;
}

void Device::update_usage(MemoryClass c, i64 delta) {
  for (MemoryUse* use : {&memory_.by_class[static_cast<std::size_t>(c)], &memory_.total}) {
    use->bytes += delta;
    use->peak = std::max(use->peak, use->bytes);
  }
}

void Device::free_pool() noexcept {
  for (auto& [size, blocks] : pool_->free_blocks) {
    for (void* block : blocks) system_free(block);
  }
  pool_->free_blocks.clear();
}

void* MetaDevice::system_allocate(i64 bytes) {
  return reinterpret_cast<void*>(std::exchange(next_address_, next_address_ + static_cast<std::uintptr_t>(bytes)));
}

}  // namespace mcpp
