// Properties of a Device's processor: name, memory, clock and profiler ranges.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tensor/device.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Total and free memory of the system in bytes, counting all processes.
struct SystemMemory {
  i64 total = 0, free = 0;
};

/// Backend implementations of the functions below: tensor/processor.cpp, tensor/cuda/processor.cpp.
template <DeviceType D>
struct Processor {
  static std::string name(const Device& device);
  static SystemMemory memory(const Device& device);
  static double seconds_of(Device& device, const std::function<void()>& f);
  static std::unique_ptr<DeviceClock> make_clock(Device& device);
  static void begin_range(const char* name) noexcept;
  static void end_range() noexcept;
};

/// Returns "NVIDIA H200" for a GPU; for a CPU the instruction set used by ops.
std::string device_name(const Device& device);
SystemMemory system_memory(const Device& device);
/// Runs f and returns the seconds that the work it starts takes; blocks until this work is done. A GPU measures with
/// its own clock, after previously queued work.
double seconds_of(Device& device, const std::function<void()>& f);

/// Returns the clock of an asynchronous device; null for a CPU. The device must outlive it.
std::unique_ptr<DeviceClock> make_device_clock(Device& device);

/// Names the work of this scope in the timeline of the device's profiler: on CUDA an NVTX range, for Nsight Systems
/// (cuBLAS, cuDNN and NCCL name their own calls inside). On every device the range also appears in the traces and
/// timers of `profiler`, unless it is null. Ranges nest. The cost is negligible when no profiler is active.
class ProfileRange {
 public:
  ProfileRange(const Device& device, Profiler* profiler, const char* name, Detail detail = Detail::Layer,
               const RangeInfo& info = {});
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  DeviceType device_;
  TimedRange timed_;
};

}  // namespace mcpp
