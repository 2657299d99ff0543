#include "megatron_cpp/monitor/device_warnings.h"

#include "tensor/cuda_device.h"
#include "tensor/on_device.h"

namespace mcpp {

void log_device_warnings([[maybe_unused]] Device& device, [[maybe_unused]] const Log& log) {
  if constexpr (kWithCuda) {
    if (device.type() != DeviceType::Cuda) return;
    for (const std::string& notice : take_notices(device)) log.warn(notice);
  }
}

}  // namespace mcpp
