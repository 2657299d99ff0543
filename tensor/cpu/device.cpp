// Construction and memory of the CPU device: the part of Device that depends on this backend's libraries.
#include "tensor/device.h"

#include <sys/mman.h>

#include <cstdlib>

#include "base/check.h"
#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/shared_arena.h"

namespace mcpp {
namespace {

constexpr i64 kAlignment = 64;

}  // namespace

CpuDevice::CpuDevice(CpuOptions options)
    : Device(DeviceType::Cpu),
      options_(options),
      arena_(options.shared ? SharedArena::create() : nullptr),
      gemm_cache_(new GemmCache, [](GemmCache* cache) { delete cache; }) {
  check_input(options_.threads >= 1, "the CPU device needs at least one thread, not ", options_.threads);
}

CpuDevice::~CpuDevice() {
  free_pool();
}

void* CpuDevice::system_allocate(i64 bytes) {
  if (arena_ && bytes >= SharedArena::kSmallestBlock) {
    if (void* data = arena_->allocate(bytes)) return data;
  }
  const bool is_large = bytes >= kHugePage;
  void* data = nullptr;
  if (::posix_memalign(&data, static_cast<std::size_t>(is_large ? kHugePage : kAlignment),
                       static_cast<std::size_t>(bytes)) != 0)
    return nullptr;
  // Reduces page faults and TLB misses; only a hint where huge pages are unavailable.
  if (is_large) ::madvise(data, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return data;
}

void CpuDevice::system_free(void* data) noexcept {
  if (arena_ && arena_->contains(data))
    arena_->free(data);
  else
    std::free(data);
}

}  // namespace mcpp
