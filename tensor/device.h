// A Device is one processor as one rank uses it: where buffers come from, what they are for, and the library state
// (thread count, caches of compiled kernels; on CUDA also stream and handles) that ops on its tensors need. main, or
// the test, makes one per rank and hands it down; tensors refer to it, so ops need no other context.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

enum class DeviceType : u8 { Cpu, Cuda };

/// What a buffer is for; the memory table has a row for each.
enum class MemoryClass : u8 { Params, Grads, OptimizerState, Activations, Workspace, Other };
inline constexpr std::size_t kMemoryClasses = 6;
std::string_view name_of(MemoryClass c);

struct MemoryUse {
  i64 bytes = 0;  ///< held by live buffers now
  i64 peak = 0;   ///< the most since the start or reset_peak()
};

/// Bytes of live buffers by class, and in all.
struct MemoryTable {
  std::array<MemoryUse, kMemoryClasses> by_class;
  MemoryUse total;
  /// Aligned text, one line per class that was ever used.
  std::string to_string() const;
};

/// Options of the CPU device.
struct CpuOptions {
  int threads = 1;  ///< OpenMP threads that ops use; no result depends on how many
  /// Takes big buffers from memory that other processes can map, where the system has it: for runs of several ranks on
  /// a machine, whose collectives then need no copies.
  bool shared = false;
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceType type() const { return type_; }

  /// At least `bytes` of uninitialised memory, 64-byte aligned; throws Error OutOfMemory with the memory table.
  /// Released buffers are pooled by size and handed out again.
  void* allocate(i64 bytes, MemoryClass c);
  void release(void* data, i64 bytes, MemoryClass c) noexcept;
  /// Gives pooled memory that nobody uses back to the system.
  void trim();

  const MemoryTable& memory() const { return memory_; }
  void reset_peak();

 protected:
  explicit Device(DeviceType type);

 private:
  struct Pool;
  virtual void* system_allocate(i64 bytes) = 0;  ///< nullptr when out of memory
  virtual void system_free(void* data) noexcept = 0;
  void account(MemoryClass c, i64 delta);

  DeviceType type_;
  MemoryTable memory_;

 protected:
  std::unique_ptr<Pool> pool_;
  void free_pool() noexcept;  ///< for the destructors of derived classes, which own system_free
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
  /// Where buffers of 16 KiB and more live; null without CpuOptions::shared. (tensor/cpu/shared_arena.h)
  const SharedArena* arena() const { return arena_.get(); }

 private:
  void* system_allocate(i64 bytes) override;
  void system_free(void* data) noexcept override;

  CpuOptions options_;
  std::unique_ptr<SharedArena> arena_;
  std::unique_ptr<GemmCache, void (*)(GemmCache*)> gemm_cache_;
};

}  // namespace mcpp
