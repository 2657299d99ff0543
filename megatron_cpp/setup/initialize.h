// What a command stands on: the device and the groups of ranks.
#pragma once
#include <memory>
#include <string>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/world.h"
#include "parallel/state.h"

namespace mcpp {

/// BadInput on every rank, naming a rank whose text `mine` differs from rank 0's, and where. Called by all of `world`.
void check_same_on_ranks(const char* what, const std::string& mine, Communicator& world, const char* remedy);

struct Session {
  std::unique_ptr<Device> device;
  std::unique_ptr<Profiler> profiler;  ///< of this rank; groups and model tell it what they do
  std::unique_ptr<Communicator> gpus;  ///< all ranks once more, for tensors on GPUs; null on the CPU
  ParallelState parallel;
  Communicator* node;                  ///< the ranks of this one's machine
  FlightRecorder* recorder = nullptr;  ///< that of the world
  SlurmJob job;                        ///< that the ranks belong to

  /// Tells the watchdog, if there is one, what comes now.
  void enter(Activity activity, i64 iteration) const {
    if (recorder) recorder->enter(activity, iteration);
  }
};

/// Sets up the processor and the groups of ranks as configured. Called by all ranks of `world`, which outlive the
/// session. BadInput when this program or this machine does not have the device, when the layout is impossible, or when
/// the ranks do not agree: on the program's build or on the configuration.
Session initialize(const Config& config, const World& world);

}  // namespace mcpp
