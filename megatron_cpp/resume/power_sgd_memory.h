// Redistribution of the error feedback of PowerSGD (parallel/dp/power_sgd.h) when a checkpoint is loaded on a different
// number of ranks.
#pragma once
#include <vector>

#include "checkpoint/load/reader.h"

namespace mcpp {

/// Removes from `shards`, as returned by shards_to_load(), the PowerSGD states that the checkpoint lacks because it was
/// saved by different ranks or without PowerSGD, and resets them to their initial values. Returns the removed shards.
std::vector<NamedShard> extract_unsaved(std::vector<NamedShard>& shards, const CheckpointReader& reader);

/// Loads the errors among `unsaved` from those of the ranks that saved: of n ranks, each adds up those of every n-th
/// saved rank, so that the sum over all ranks is preserved. Collective; returns damage as CheckpointReader::load()
/// does.
std::optional<Damage> load_redistributed_errors(std::vector<NamedShard>& unsaved, CheckpointReader& reader,
                                                const LoadingRanks& ranks);

}  // namespace mcpp
