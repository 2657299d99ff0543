// Retention of checkpoints in a folder, and removal of the others.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {

/// Rule for the checkpoints that are kept.
struct Retention {
  i64 keep_latest_k = 0;         ///< number of newest checkpoints to keep; 0 = all
  i64 save_retain_interval = 0;  ///< also keeps multiples of this iteration; 0 = none
  /// Excludes interim checkpoints from the newest ones, so that a rollback finds the checkpoints of an uninterrupted
  /// run.
  bool keeps_rollback_targets = false;
  /// Name in RunState::extra that identifies the owner. Checkpoints whose value differs from that of the checkpoint
  /// named by `latest` belong to a different run: they are neither counted nor removed. If empty, all checkpoints
  /// count.
  std::string owner_name = {};
  Path in_use = {};  ///< checkpoint that is being read and therefore kept; empty = none
};

/// Infix between the name of an entry that is being written or removed and the process tag.
inline constexpr std::string_view kTempInfix = ".tmp-";
/// Suffix of a checkpoint that was moved aside for a new checkpoint of the same iteration.
inline constexpr std::string_view kReplacedSuffix = "-old";

/// Name in RunState::extra of a checkpoint that was saved only because the run was stopped there.
inline constexpr const char* kInterimName = "interim";
/// Returns an extra value of a checkpoint; "" if it has none or its manifest cannot be read.
std::string extra_value(const Path& directory, const std::string& name);
/// Returns true if the checkpoint is marked as interim; false if its manifest cannot be read.
bool is_interim_checkpoint(const Path& directory);

/// Returns the checkpoints that `retention` does not keep. The result never includes the checkpoint that `latest`
/// names, and is empty if `latest` names none. Checkpoints of a branch that a user abandoned by setting `latest` back
/// (lineage.h) are neither counted nor removed. The kept checkpoints are not verified.
std::vector<Path> find_outdated(const Path& folder, const Retention& retention);

/// Removes the outdated checkpoints. Called after `latest` was written. Logs a warning for entries that cannot be
/// listed or removed.
void prune(const Path& folder, const Retention& retention, const Log& log);

/// Removes the objects of a checkpoint in an object store that its manifest does not list: remains of a checkpoint that
/// it replaced. Failures log a warning.
void remove_unlisted_objects(const Path& checkpoint, const Manifest& manifest, const Log& log);

/// Removes temporary entries of other hosts and of ended processes of this host. A checkpoint that such a process had
/// moved aside gets its name back if the process died before publishing the new checkpoint. In an object store, removes
/// objects of interrupted uploads that are older than a day. Failures log a warning.
void remove_stale_entries(const Path& folder, const Log& log);

}  // namespace mcpp
