#include "tensor/host/device_wait_timer.h"

#include "tensor/on_device.h"

namespace mcpp {

template <>
std::unique_ptr<DeviceWaitTimer> make_device_wait_timer_on<DeviceType::Cpu>(Device&) {
  return nullptr;
}

std::unique_ptr<DeviceWaitTimer> make_device_wait_timer(Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return make_device_wait_timer_on<D>(device); });
}

}  // namespace mcpp
