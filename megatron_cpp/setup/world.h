// Ranks that a command runs on.
#pragma once
#include "base/machine.h"
#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/watchdog/flight_recorder.h"
#include "comm/watchdog/status_board.h"
#include "megatron_cpp/config/sections/device_config.h"

namespace mcpp {

struct World {
  Communicator& ranks;
  Communicator* node = nullptr;        ///< ranks of this node; null if all ranks are
  FlightRecorder* recorder = nullptr;  ///< recorder for this rank's watchdog; null without watchdog
  int cores = 0;                       ///< cores available to all ranks of the node together; 0 = those of the process
  int cores_per_rank = 0;              ///< cores available to each rank; 0 = all those of the process
  SlurmJob job = {};                   ///< Slurm job of the ranks
  StatusBoard* board = nullptr;        ///< board shared by the ranks of the node; null for a single rank

  Communicator& ranks_of_node() const { return node ? *node : ranks; }
};

/// Returns the number of threads of a CPU rank: as configured, or one per available core.
inline int num_rank_threads(const DeviceConfig& device, int cores_per_rank) {
  if (device.num_threads > 0) return static_cast<int>(device.num_threads);
  return cores_per_rank > 0 ? cores_per_rank : num_usable_cpus();
}

}  // namespace mcpp
