// The ranks that one command runs on.
#pragma once
#include "base/program/cpu_list.h"
#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/watch/flight_recorder.h"
#include "comm/watch/status_board.h"
#include "megatron_cpp/config/sections/device_config.h"

namespace mcpp {

struct World {
  Communicator& ranks;
  Communicator* node = nullptr;        ///< those of this rank's machine; null: all are
  FlightRecorder* recorder = nullptr;  ///< of what this rank does, for its watchdog; null when there is none
  int cores = 0;                       ///< that ranks of its machine may use, of all together; 0 = as the process
  int cores_per_rank = 0;              ///< of its machine, that a rank may count on; 0 = all that the process may use
  SlurmJob job = {};                   ///< that the ranks belong to
  StatusBoard* board = nullptr;        ///< of the ranks of the machine; null when this one is alone

  Communicator& ranks_of_node() const { return node ? *node : ranks; }
};

/// Threads of a rank on CPUs: as many as the configuration says, or else one for each core that it may count on.
inline int threads_of_rank(const DeviceConfig& device, int cores_per_rank) {
  if (device.num_threads > 0) return static_cast<int>(device.num_threads);
  return cores_per_rank > 0 ? cores_per_rank : usable_cpus();
}

}  // namespace mcpp
