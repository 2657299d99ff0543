// What a command stands on: the device and the groups of ranks.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "megatron_cpp/device_config.h"

namespace mcpp {

struct Session {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> world;  ///< all ranks
  std::unique_ptr<Communicator> tp;     ///< those that share one copy of each layer
  std::unique_ptr<Communicator> dp;     ///< those that hold the same weights and read different samples
};

/// Sets up the processor as configured. BadInput when this program or this machine does not have it.
Session initialize(const DeviceConfig& config);

}  // namespace mcpp
