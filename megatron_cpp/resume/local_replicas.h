// Copies of the local checkpoints of a run on other nodes (checkpoint.local_replicas).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/directory/lock.h"
#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/resume/part_recovery.h"
#include "megatron_cpp/resume/part_replication.h"

namespace mcpp {

/// Keeps copies of every rank's part of each local checkpoint on other nodes. At most one replication is in flight: the
/// next one waits for it. All member functions are collective, except is_in_flight().
class LocalReplicas {
 public:
  /// Checks that the folders of the nodes are separate, and locks the folders of the copies that this rank keeps. With
  /// fewer nodes than copies, logs a warning and keeps fewer, so that a run that has lost nodes continues.
  explicit LocalReplicas(const RunContext& run);

  /// Returns the folders in which this rank keeps copies.
  const std::vector<Path>& folders() const { return folders_; }
  /// Starts to replicate `part`, this rank's part of a complete local checkpoint.
  void start(const Path& part, SaveObserver observer);
  /// Advances the replication in flight once the threads of all ranks are idle. Call it after each step.
  void poll();
  /// Waits for the replication in flight, if there is one.
  void finish();
  /// Returns true if a replication is in flight.
  bool is_in_flight() const { return replication_ != nullptr; }

 private:
  void advance();
  void log_placement(double seconds) const;
  void remove_moved_parts() const;

  RunContext run_;
  LocalStore store_;
  ReplicaPeers peers_;
  std::vector<Path> folders_;
  std::vector<std::unique_ptr<FolderLock>> locks_;
  std::unique_ptr<Communicator> group_;
  CpuDevice host_;
  double start_ = 0;   // steady_seconds() at the start of the replication in flight
  i64 iteration_ = 0;  // iteration that is replicated
  bool is_first_ = true;
  std::unique_ptr<PartReplication> replication_;  // uses all of the above
};

}  // namespace mcpp
