// Which checkpoints of a folder stay, and how the others go.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"

namespace mcpp {

/// Which older checkpoints are kept.
struct Retention {
  i64 keep_latest_k = 0;         ///< the newest ones; 0 = all
  i64 save_retain_interval = 0;  ///< and iterations that are multiples of this; 0 = none
  /// Interim checkpoints do not count among the newest, so that rollbacks find what a run without interruptions keeps.
  bool keeps_rollback_targets = false;
  /// Name in RunState::extra: checkpoints with another value than the one that `latest` names belong to somebody else,
  /// do not count and stay. Empty = all count.
  std::string owner_name = {};
};

/// What stands in the name of an entry that grows, or goes, before the tag of its process.
inline constexpr std::string_view kTemporary = ".tmp-";
/// At the end of such a name: a checkpoint that made room for a new one of the same iteration, which is still to come.
inline constexpr std::string_view kAside = "-old";

/// Name in RunState::extra of a checkpoint that was saved only because the run was stopped there.
inline constexpr const char* kInterimName = "interim";
/// Returns whether the checkpoint is marked so; false when its manifest cannot be read.
bool is_interim_checkpoint(const Path& directory);

/// The checkpoints that `retention` does not keep; never the one that `latest` names, and none when `latest` names
/// none. It does not look whether the kept ones are sound.
std::vector<Path> outdated(const Path& folder, const Retention& retention);

/// Removes these. Saving calls it when `latest` has just been written. What cannot be listed or removed gives a
/// warning.
void prune(const Path& folder, const Retention& retention, const Log& log);

/// Removes temporary entries of processes of this host that ended, and of other hosts. But a checkpoint that one of
/// them had put aside gets its name back, where it died before another had that. What fails gives a warning.
void remove_stale(const Path& folder, const Log& log);

}  // namespace mcpp
