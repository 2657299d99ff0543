// Device as used by one rank: allocates buffers by purpose, and holds the library state (thread count, caches of
// compiled kernels; on CUDA also stream and handles) that ops on the device's tensors need. main, or a test, creates
// one device per rank and passes it down. Tensors refer to their device, so ops need no other context.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/integer_math.h"
#include "base/types.h"

namespace mcpp {

// Allocation size of tensors, including padding.

/// Returns the bytes that a buffer of `bytes` occupies on a device. Sizes are rounded up to 64 bytes and to 1/32 of the
/// next power of two, so that buffers of nearly equal size share a pool entry.
inline i64 padded_alloc_size(i64 bytes) {
  const u64 above = std::bit_ceil(static_cast<u64>(bytes) + 1);
  return round_up(bytes, std::max<i64>(64, static_cast<i64>(above / 32)));
}

/// Tensors on the meta device have a shape, a type and a size, but no memory. Ops check their arguments and compute
/// nothing; values read from them are zero.
enum class DeviceType : u8 { Cpu, Cuda, Meta };

/// Purpose of a buffer. Each purpose is a row of the memory table. RecordedPasses: blocks of a MemoryArena that no
/// tensor uses now.
enum class MemoryClass : u8 { Params, Grads, OptimizerState, Activations, Workspace, Other, RecordedPasses };
inline constexpr std::size_t kMemoryClasses = 7;
std::string_view name_of(MemoryClass c);

struct MemoryUse {
  i64 bytes = 0;  ///< held by live buffers now
  i64 peak = 0;   ///< maximum since the start or reset_peak()
};

/// Bytes of live buffers, by class and in total.
struct MemoryTable {
  std::array<MemoryUse, kMemoryClasses> by_class;
  MemoryUse total;
  /// Formats an aligned table with one line per class that was ever used.
  std::string to_string() const;
};

/// Options of the CPU device.
struct CpuOptions {
  int threads = 1;  ///< OpenMP threads used by ops; results do not depend on it
  /// Allocates large buffers in memory that other processes can map, if the system supports it. With several ranks per
  /// node, collectives then need no copies.
  bool shared = false;
};

struct OpTrace;     // tensor/op_trace.h
class MemoryArena;  // tensor/memory_arena.h

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceType type() const { return type_; }

  /// Returns at least `bytes` of uninitialized, 64-byte aligned memory. Throws Error OutOfMemory with the memory table.
  /// Released buffers are pooled by size and reused.
  void* allocate(i64 bytes, MemoryClass c);
  void release(void* data, i64 bytes, MemoryClass c) noexcept;
  /// Returns unused pooled memory to the system.
  void trim();

  const MemoryTable& memory() const { return memory_; }
  void reset_peak();

 protected:
  explicit Device(DeviceType type);

 private:
  friend class MemoryArena;
  struct Pool;
  void* take(i64 size, i64 bytes, MemoryClass c);
  virtual void* system_allocate(i64 bytes) = 0;  ///< returns nullptr when out of memory
  virtual void system_free(void* data) noexcept = 0;
  void update_usage(MemoryClass c, i64 delta);

  DeviceType type_;
  MemoryTable memory_;

 protected:
  std::unique_ptr<Pool> pool_;
  void free_pool() noexcept;  ///< called by the destructors of derived classes, which define system_free
};

/// State of the GEMM library, defined by the CPU backend.
struct GemmCache;
class SharedArena;

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuOptions options = {});
  ~CpuDevice() override;

  int threads() const { return options_.threads; }
  GemmCache& gemm_cache() { return *gemm_cache_; }
  /// Returns the arena (tensor/cpu/shared_arena.h) of buffers of 16 KiB and more; null unless CpuOptions::shared.
  const SharedArena* arena() const { return arena_.get(); }

 private:
  void* system_allocate(i64 bytes) override;
  void system_free(void* data) noexcept override;

  CpuOptions options_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<GemmCache, void (*)(GemmCache*)> gemm_cache_;
};

/// Device that counts memory without allocating it, and records ops and messages without executing them.
class MetaDevice final : public Device {
 public:
  MetaDevice() : Device(DeviceType::Meta) {}
  ~MetaDevice() override { free_pool(); }

  /// Appends further ops and messages on tensors of this device to `trace`, or stops recording if `trace` is null.
  void record_to(OpTrace* trace) { trace_ = trace; }
  OpTrace* trace() const { return trace_; }

 private:
  /// Returns an address that no other buffer of this device has had and that must not be accessed.
  void* system_allocate(i64 bytes) override;
  void system_free(void*) noexcept override {}

  std::uintptr_t next_address_ = 64;
  OpTrace* trace_ = nullptr;
};

}  // namespace mcpp
