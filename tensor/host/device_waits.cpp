#include "tensor/host/device_waits.h"

#include "tensor/on_device.h"

namespace mcpp {

template <>
std::unique_ptr<DeviceWaits> make_device_waits_on<DeviceType::Cpu>(Device&) {
  return nullptr;
}

std::unique_ptr<DeviceWaits> make_device_waits(Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return make_device_waits_on<D>(device); });
}

}  // namespace mcpp
