#include "tensor/device_graph.h"

#include "base/check.h"
#include "tensor/on_device.h"

namespace mcpp {

template <>
std::unique_ptr<DeviceGraph> record_graph_on<DeviceType::Cpu>(Device&, const std::function<void()>&) {
  MCPP_CHECK(false, "a CPU cannot record work");
  return nullptr;
}

std::unique_ptr<DeviceGraph> record_graph(Device& device, const std::function<void()>& work) {
  return on_device(device.type(), [&]<DeviceType D>() { return record_graph_on<D>(device, work); });
}

}  // namespace mcpp
