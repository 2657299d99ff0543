// Goodput of a run whose nodes fail at random: fraction of the time spent on steps that are not repeated, simulated
// under a virtual clock for checkpoints on disks and in the memory of several nodes.
#pragma once
#include <string>
#include <vector>

#include "plan/scaling/training_cost.h"

namespace mcpp {

/// Periodic checkpoints of one kind.
struct CheckpointTier {
  i64 interval = 0;          ///< steps between two checkpoints; 0 = none
  double stall_seconds = 0;  ///< time that training waits for each
  double write_seconds = 0;  ///< time from its start until it can be used; the next one waits for it
};

/// Run with failures. If a node fails, all ranks restart from the newest usable checkpoint, with a spare node.
struct RecoveryModel {
  double step_seconds = 1;
  i64 nodes = 1;
  double node_mtbf_seconds = 0;  ///< mean time between failures of one node; failures are independent
  double restart_seconds = 0;    ///< time from a failure to the first new step
  CheckpointTier disk = {};      ///< survives all failures
  CheckpointTier memory = {};    ///< in the memory of a rank's node and of the next `replicas` nodes
  i64 replicas = 1;
};

struct Goodput {
  double fraction = 0;    ///< goodput
  double lost_steps = 0;  ///< mean number of finished steps that a failure loses
  i64 failures = 0;       ///< simulated failures
  i64 from_memory = 0;    ///< restarts from a checkpoint in memory
};

/// Simulates `failures` failures. A checkpoint in memory can be used if, for each node, the node or one of the
/// `replicas` next ones has not failed since it was written; a restart restores the parts of the failed node, and the
/// next checkpoint its copies. The result is the same for the same seed.
Goodput simulate_goodput(const RecoveryModel& model, i64 failures, u64 seed = 1);

/// Goodput at one interval.
struct GoodputPoint {
  bool is_in_memory;
  i64 interval;
  i64 disk_interval;  ///< steps between two checkpoints on disks; of checkpoints in memory the best one
  double stall_seconds;
  Goodput goodput;
};

/// Returns the goodput for intervals 1, 2, 5, 10, ... of checkpoints on disks only, and of checkpoints in memory
/// together with some on disks, at the best interval. `save_seconds` of `failures` applies to disks; 0 = as predicted
/// for local disks, as if these survived the loss of their node. Copies are sent over the links between nodes.
/// Checkpoints in memory are left out if the host link is unknown.
std::vector<GoodputPoint> goodput_by_interval(const PredictionInput& input, double step_seconds,
                                              const Failures& failures);

}  // namespace mcpp
