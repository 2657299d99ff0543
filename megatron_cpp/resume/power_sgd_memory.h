// What ranks remember of gradients that are summed by factors (parallel/dp/power_sgd.h), from the checkpoint of other
// ranks.
#pragma once
#include <vector>

#include "checkpoint/load/reader.h"

namespace mcpp {

/// Takes those states of PowerSGD out of `shards`, of shards_to_load(), that the checkpoint does not have, because
/// other ranks saved it, or ranks that summed in full, and makes them what they are at the start.
std::vector<NamedShard> take_out_unsaved(std::vector<NamedShard>& shards, const CheckpointReader& reader);

/// The errors among `unsaved` become those of the ranks that saved: each rank of n takes over those of every n-th, and
/// adds them up, so that their sum over ranks is what it was. Called by all ranks; as CheckpointReader::load().
std::optional<Damage> load_errors_of_others(std::vector<NamedShard>& unsaved, CheckpointReader& reader,
                                            const LoadingRanks& ranks);

}  // namespace mcpp
