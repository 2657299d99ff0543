#include "tensor/processor.h"

#include <nvtx3/nvToolsExt.h>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

namespace mcpp {
namespace {

const CudaDevice& gpu(const Device& device) {
  const auto& found = static_cast<const CudaDevice&>(device);
  found.activate();
  return found;
}

}  // namespace

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
