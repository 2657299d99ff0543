// Recovery of local checkpoints: at the start of a run, parts that a rank's node lacks, or that are damaged there, are
// restored from copies on any node.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "comm/communicator.h"

namespace mcpp {

/// Names of values in RunState::extra of a part.
inline constexpr const char* kRunIdName = "run_id";    ///< identity of the run
inline constexpr const char* kSaveIdName = "save_id";  ///< identical in all parts of a save

/// Local tier of a run, as seen by one rank.
struct LocalStore {
  Path folder;             ///< folder of this rank's node
  std::string run_id;      ///< identity of the run
  std::vector<int> nodes;  ///< node of each rank (nodes_of_ranks())
};

/// Makes the parts of the newest local checkpoint available on the nodes of their ranks. A checkpoint is used if each
/// rank has an intact part or copy on any node.
///  - Verifies all bytes of the parts that are used.
///  - Tries the copies on the rank's own node first, then those of other nodes, which send them. A warning names each
///    damaged copy.
///  - Ignores checkpoints up to iteration `newer_than`.
/// Returns true if a checkpoint was restored or was already complete. Collective.
bool restore_parts(const LocalStore& store, i64 newer_than, Communicator& world, const Log& log);

/// Removes parts and copies of this run from the folder of the node, except from the folders named in `kept`. Ranks
/// leave such parts behind when they move to other nodes. Parts of other runs remain. Logs a warning if a part cannot
/// be removed. Not collective.
void remove_unused_parts(const LocalStore& store, const std::vector<std::string>& kept, const Log& log);

}  // namespace mcpp
