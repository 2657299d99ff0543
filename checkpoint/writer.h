// Saving: every rank writes one file, and the checkpoint appears at once, complete and durable, or not at all.
#pragma once
#include <span>

#include "base/log.h"
#include "checkpoint/manifest.h"
#include "checkpoint/save_point.h"
#include "comm/communicator.h"

namespace mcpp {

/// Which older checkpoints are kept.
struct Retention {
  i64 keep_last = 0;             ///< the newest ones; 0 = all
  i64 save_retain_interval = 0;  ///< and iterations that are multiples of this; 0 = none
};

/// Writes <folder>/iter_<state.iteration>/ and returns its path. Called by all ranks of `world`, each with its own
/// shards; together they must hold every tensor once. The state of rank 0 counts. Rank 0 should hold the FolderLock.
///
/// Everything goes to a temporary directory first: the ranks' files with checksums, then the manifest, all flushed; a
/// rename makes it a checkpoint, replacing one of the same iteration; then `latest` points at it; then checkpoints
/// that `retention` does not keep, and what died processes left, are removed. When any rank fails, all throw its error
/// and the folder is as before.
Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention = {}, const SaveObserver& observer = {});
Path save_checkpoint(const Path& folder, const RunState& state, std::span<const NamedShard> shards, Communicator& world,
                     const Log& log, const Retention& retention = {}, const SaveObserver& observer = {});

/// Removes the checkpoints that `retention` does not keep; never the one that `latest` names, and none when `latest`
/// names none. It does not look whether the kept ones are sound: saving calls it when `latest` has just been written.
/// What cannot be removed gives a warning.
void prune(const Path& folder, const Retention& retention, const Log& log);

/// Removes temporary entries of processes of this host that ended, and of other hosts.
void remove_stale(const Path& folder, const Log& log);

}  // namespace mcpp
