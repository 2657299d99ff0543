// Initialization of the device and process groups of a command. World and Session describe the command's ranks, device
// and program.
#pragma once
#include <memory>
#include <string>

#include "base/log.h"
#include "base/machine.h"
#include "comm/communicator.h"
#include "comm/launcher.h"
#include "comm/watchdog/flight_recorder.h"
#include "comm/watchdog/status_board.h"
#include "comm/watchdog/watchdog.h"
#include "megatron_cpp/config/config.h"
#include "parallel/state.h"

namespace mcpp {

/// Ranks that a command runs on.
struct World {
  Communicator& ranks;
  Communicator* node = nullptr;        ///< ranks of this node; null if all ranks are on it
  FlightRecorder* recorder = nullptr;  ///< recorder for this rank's watchdog; null without watchdog
  int cores = 0;           ///< cores available to all ranks of the node together; 0 = cores available to the process
  int cores_per_rank = 0;  ///< cores available to each rank; 0 = all cores available to the process
  SlurmJob job = {};       ///< Slurm job of the ranks
  StatusBoard* board = nullptr;  ///< board shared by the ranks of the node; null for a single rank

  Communicator& ranks_of_node() const { return node ? *node : ranks; }
};

/// Returns the number of threads of a CPU rank: as configured, or one per available core.
inline int num_rank_threads(const DeviceConfig& device, int cores_per_rank) {
  if (device.num_threads > 0) return static_cast<int>(device.num_threads);
  return cores_per_rank > 0 ? cores_per_rank : num_usable_cpus();
}

// Connection of process groups before training on GPUs starts.

/// Connects the groups that every step uses (connect_collectives) before any GPU waits for other ranks. Collective.
void connect_groups(const ParallelState& parallel, Device& device);

/// Throws BadInput on every rank if the text `local` of any rank differs from rank 0's; names that rank and the first
/// difference. Collective over `world`.
void check_identical_on_ranks(const char* what, const std::string& local, Communicator& world, const char* remedy);

struct Session {
  std::unique_ptr<StatusBoard> board = {};  ///< board of `watchdog`
  /// Watchdog of a single-rank run, which detects a hung GPU; null on a CPU. With several ranks, main() starts the
  /// watchdog.
  std::unique_ptr<Watchdog> watchdog = {};
  std::unique_ptr<Device> device;
  std::unique_ptr<Profiler> profiler;  ///< profiler of this rank; groups and model report to it
  std::unique_ptr<Communicator> gpus;  ///< group of all ranks for tensors on GPUs; null on the CPU
  ParallelState parallel;
  Communicator* node;                  ///< ranks on this node
  FlightRecorder* recorder = nullptr;  ///< recorder of the world
  SlurmJob job;                        ///< Slurm job of the ranks
  int cores = 0;                       ///< cores available to all ranks of the node together; 0 = of the process

  /// Reports the start of an activity to the watchdog, if there is one.
  void enter(Activity activity, i64 iteration) const {
    if (recorder) recorder->enter(activity, iteration);
  }
};

/// Sets up the device and the process groups as configured. Collective over `world`, which must outlive the session.
/// Throws BadInput if the program or the host does not support the device, if the layout is impossible, or if the
/// ranks differ in their program build or configuration.
Session initialize(const Config& config, const World& world);

// Synchronization of GEMM algorithm choices across the ranks of a run, and the file that stores these choices.

/// Reads device.gemm_tuning_file on rank 0 and applies it on all ranks. Collective. Does nothing if no file is
/// configured. Throws BadInput on all ranks if the file is damaged, or if it is missing and will not be created or
/// cannot be created.
void load_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks);

/// If gemm_tuning = "time", distributes the choices that ranks made since the last call to all ranks. If choices
/// conflict, the choice of the lowest rank is used. Rank 0 writes them to the file. Call it before each checkpoint, so
/// that a resumed run uses the same algorithms. Collective.
void sync_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks);

/// Logs the recipes that a GPU emulates, with the reason. Does nothing on a CPU, which emulates all.
void log_emulated_recipes(const TrainingConfig& config, const Device& device, const Log& log);

/// Logs the warnings of a GPU that falls back to a slower implementation, if they are new since the last call. Only
/// rank 0 logs, because all ranks fall back together. Does nothing on a CPU.
void log_device_warnings(Device& device, const Log& log);

}  // namespace mcpp
