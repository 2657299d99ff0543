// Recovery of local checkpoints: at the start of a run, parts that a rank's node lacks, or that are damaged there, are
// restored from copies on any node.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"
#include "base/log.h"
#include "comm/communicator.h"

namespace mcpp {

/// Names of counters in RunState::extra of a part.
inline constexpr const char* kRunIdName = "run_id";    ///< identity of the run
inline constexpr const char* kSaveIdName = "save_id";  ///< identical in all parts of a save

/// Local tier of a run, as seen by one rank.
struct LocalStore {
  Path folder;             ///< folder of this rank's node
  std::string run_id;      ///< identity of the run
  std::vector<int> nodes;  ///< node of each rank (nodes_of_ranks())
};

/// Makes the parts of the newest local checkpoint that is complete and intact, counting all copies, available on the
/// nodes of their ranks. Verifies all bytes of the parts that are used. If a copy is missing or damaged, a warning
/// names it, and the next one is used: first those on the same node, then those of other nodes, which send them.
/// Checkpoints up to iteration `newer_than` are not considered. Returns true if there is a newer checkpoint with all
/// parts. Collective.
bool restore_parts(const LocalStore& store, i64 newer_than, Communicator& world, const Log& log);

/// Removes parts and copies of the run from the folder of the node, except from the folders named in `kept`: ranks may
/// have run on other nodes before. Parts of other runs are not removed. Failures log a warning. Not collective.
void remove_unused_parts(const LocalStore& store, const std::vector<std::string>& kept, const Log& log);

}  // namespace mcpp
