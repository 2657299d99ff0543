// Recorded work of a device, which runs again with a single call: CUDA graphs.
#pragma once
#include <functional>
#include <memory>

#include "tensor/device.h"

namespace mcpp {

/// Work recorded by record_graph(): the same operations on the same addresses with the same arguments. The device, and
/// all memory that the work uses, must outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  /// Queues the work after previously queued ops. Throws Error with the library's message if the library rejects it.
  virtual void launch() = 0;
  /// Returns the number of operations.
  virtual i64 size() const = 0;

 protected:
  DeviceGraph() = default;
};

/// Backend implementations: tensor/device_graph.cpp, tensor/cuda/device_graph.cpp.
template <DeviceType D>
std::unique_ptr<DeviceGraph> record_graph_on(Device& device, const std::function<void()>& work);

/// Records the ops that `work` queues on `device`, a GPU, without running them. `work` must not wait for the device,
/// read its values, or write values of the host to it; such calls throw. During the recording, no other thread may
/// queue work on the device, because the work would be recorded too; such calls throw on the other thread.
std::unique_ptr<DeviceGraph> record_graph(Device& device, const std::function<void()>& work);

}  // namespace mcpp
