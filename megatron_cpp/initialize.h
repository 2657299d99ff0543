// What a command stands on: the device and the groups of ranks.
#pragma once
#include <memory>

#include "megatron_cpp/config.h"
#include "parallel/state.h"

namespace mcpp {

struct Session {
  std::unique_ptr<Device> device;
  ParallelState parallel;
};

/// Sets up the processor and the groups of ranks as configured. Called by all ranks of `world`, which outlives the
/// session. BadInput when this program or this machine does not have the device, when the layout is impossible, or when
/// the ranks do not agree: on the program's build or on the configuration.
Session initialize(const Config& config, Communicator& world);

}  // namespace mcpp
