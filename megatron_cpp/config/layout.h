// Layout of a run over ranks, as its configuration specifies it.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "parallel/layout_rules.h"

namespace mcpp {

/// Returns the layout specified by [parallel] and by related keys of other sections, with the data-parallel size for
/// `world_size` ranks (rounded down). expert_tensor_parallel_size = 0 is resolved for models with experts.
Layout layout_of(const Config& config, i64 world_size);
/// Returns the configuration with a different layout: the keys of [parallel], micro_batch_size, recomputation, and the
/// offload tiers and storage types that are members of Layout. Clears the offload folder if nothing remains on disk.
Config apply_layout(Config config, const Layout& layout);
/// Returns the configuration for estimates on nodes of `node_ranks` ranks: with hierarchical dispatch, these are its
/// nodes unless moe_dispatch_node_ranks is set. 0: unknown.
Config with_dispatch_nodes(Config config, i64 node_ranks);

/// Returns the microbatches of one rank in one step at the largest global batch size of the run.
i64 microbatches_per_step(const Config& config, i64 world_size);

/// Returns every reason why this configuration cannot run on `world_size` ranks (or kAnyWorld), with the nearest
/// possible values. Empty if it can run.
std::vector<std::string> layout_problems(const Config& config, int world_size);
/// Throws BadInput with all of layout_problems().
void check_layout(const Config& config, int world_size);

}  // namespace mcpp
