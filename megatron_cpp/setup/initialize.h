// Initialization of the device and process groups of a command.
#pragma once
#include <memory>
#include <string>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/world.h"
#include "parallel/state.h"

namespace mcpp {

// Connection of process groups before training on GPUs starts.

/// Connects the groups that every step uses (connect_collectives) before any GPU waits for other ranks. Collective.
void connect_groups(const ParallelState& parallel, Device& device);

/// Throws BadInput on every rank if the text `local` of any rank differs from rank 0's; names that rank and the first
/// difference. Collective over `world`.
void check_identical_on_ranks(const char* what, const std::string& local, Communicator& world, const char* remedy);

struct Session {
  std::unique_ptr<Device> device;
  std::unique_ptr<Profiler> profiler;  ///< profiler of this rank; groups and model report to it
  std::unique_ptr<Communicator> gpus;  ///< all ranks, for tensors on GPUs; null on the CPU
  ParallelState parallel;
  Communicator* node;                  ///< ranks on this node
  FlightRecorder* recorder = nullptr;  ///< recorder of the world
  SlurmJob job;                        ///< Slurm job of the ranks

  /// Reports the start of an activity to the watchdog, if there is one.
  void enter(Activity activity, i64 iteration) const {
    if (recorder) recorder->enter(activity, iteration);
  }
};

/// Sets up the device and the process groups as configured. Collective over `world`, which must outlive the session.
/// Throws BadInput if the program or the host does not support the device, if the layout is impossible, or if the
/// ranks differ in their program build or configuration.
Session initialize(const Config& config, const World& world);

}  // namespace mcpp
