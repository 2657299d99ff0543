// What a Device's processor itself has: its name, memory, clock, and the profiler that looks at it.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tensor/device.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Bytes of memory, whoever uses them.
struct SystemMemory {
  i64 total = 0, free = 0;
};

/// The functions below, by backend: tensor/processor.cpp, tensor/cuda/processor.cpp.
template <DeviceType D>
struct Processor {
  static std::string name(const Device& device);
  static SystemMemory memory(const Device& device);
  static double seconds_of(Device& device, const std::function<void()>& f);
  static std::unique_ptr<DeviceClock> make_clock(Device& device);
  static void begin_range(const char* name) noexcept;
  static void end_range() noexcept;
};

/// "NVIDIA H200"; of a CPU the instruction set that ops use.
std::string device_name(const Device& device);
SystemMemory system_memory(const Device& device);
/// Seconds that the work takes that f starts; returns when it is done. On a GPU by its own clock, behind what was
/// queued.
double seconds_of(Device& device, const std::function<void()>& f);

/// The clock of a device that works behind the host; null for a CPU. The device outlives it.
std::unique_ptr<DeviceClock> make_device_clock(Device& device);

/// From its construction to its end, what the thread does has this name in the timeline of a profiler of the device: on
/// CUDA an NVTX range, for Nsight Systems; cuBLAS, cuDNN and NCCL name their own calls inside. And so it has, on every
/// device, in traces and timers of `profiler`, if there is one. Ranges nest. While nobody looks it costs nothing worth
/// a switch.
class ProfileRange {
 public:
  ProfileRange(const Device& device, Profiler* profiler, const char* name, Detail detail = Detail::Layer,
               const RangeFacts& facts = {});
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  DeviceType device_;
  TimedRange timed_;
};

}  // namespace mcpp
