#include "tensor/processor.h"

#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

namespace mcpp {
namespace {

const CudaDevice& gpu(const Device& device) {
  const auto& cuda_device = static_cast<const CudaDevice&>(device);
  cuda_device.activate();
  return cuda_device;
}

/// Clock based on events on the compute stream. The first event maps the GPU's time to the host's.
class CudaClock final : public DeviceClock {
 public:
  explicit CudaClock(const CudaDevice& device) : device_(device) {
    device.synchronize();
    origin_.record(device.stream());
    origin_.synchronize();
    origin_time_ = ProfiledRange::Clock::now();
  }

  std::size_t mark() noexcept override {
    std::unique_ptr<CudaEvent>& event = marks_.emplace_back();
    try {
      auto new_event = std::make_unique<CudaEvent>();
      new_event->record(device_.stream());
      event = std::move(new_event);
    } catch (const Error&) {  // the next wait for the GPU reports the error
    }
    return marks_.size() - 1;
  }
  ProfiledRange::Clock::time_point time_of(std::size_t mark) override {
    const std::unique_ptr<CudaEvent>& event = marks_.at(mark);
    check_input(event != nullptr, "an event on the GPU could not be recorded");
    const std::chrono::duration<double, std::milli> elapsed(event->milliseconds_since(origin_));
    return origin_time_ + std::chrono::duration_cast<ProfiledRange::Clock::duration>(elapsed);
  }

 private:
  const CudaDevice& device_;
  CudaEvent origin_;
  ProfiledRange::Clock::time_point origin_time_;
  std::vector<std::unique_ptr<CudaEvent>> marks_;
};

}  // namespace

template <>
std::unique_ptr<DeviceClock> Processor<DeviceType::Cuda>::make_clock(Device& device) {
  return std::make_unique<CudaClock>(gpu(device));
}

template <>
std::string Processor<DeviceType::Cuda>::name(const Device& device) {
  return gpu(device).properties().name;
}

template <>
SystemMemory Processor<DeviceType::Cuda>::memory(const Device& device) {
  gpu(device);
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {.total = static_cast<i64>(total), .free = static_cast<i64>(free)};
}

template <>
double Processor<DeviceType::Cuda>::seconds_of(Device& device, const std::function<void()>& f) {
  const cudaStream_t stream = gpu(device).stream();
  const CudaEvent start, stop;
  start.record(stream);
  f();
  stop.record(stream);
  return stop.milliseconds_since(start) / 1e3;
}

template <>
void Processor<DeviceType::Cuda>::begin_range(const char* name) noexcept {
  nvtxRangePushA(name);
}

template <>
void Processor<DeviceType::Cuda>::end_range() noexcept {
  nvtxRangePop();
}

}  // namespace mcpp
