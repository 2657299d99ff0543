// Layout of a run over ranks, derived from the configuration.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/stages.h"
#include "parallel/topology.h"

namespace mcpp {

ParallelSizes parallel_sizes(const Config& config);
/// Returns the number of ranks that read different samples. layout_problems() must accept the world size.
i64 data_parallel_size(const Config& config, int world_size);
/// Returns the number of ranks over which gradients are summed and ZeRO shards: data-parallel times context-parallel
/// ranks.
i64 data_context_size(const Config& config, int world_size);
/// Returns the number of ranks over which the gradients of experts are summed.
i64 expert_data_size(const Config& config, int world_size);
/// Returns the microbatches of one rank in one step at this global batch size, and at the largest of the run.
i64 microbatches_of(i64 global_batch_size, const Config& config, int world_size);
i64 microbatches_per_step(const Config& config, int world_size);
StageSplit stage_split(const Config& config);
/// Returns the pipeline schedule for this number of microbatches.
Schedule schedule_of(const Config& config, int microbatches);
/// Returns the position in the pipeline of the rank with the output layer.
int output_rank(const Config& config);

/// Unknown number of ranks. Rules that depend on it are not checked.
inline constexpr int kAnyWorld = 0;
/// Returns every reason why this configuration cannot run on `world_size` ranks, with the nearest possible values.
/// Empty if it can run.
std::vector<std::string> layout_problems(const Config& config, int world_size);
/// Throws BadInput with all of layout_problems().
void check_layout(const Config& config, int world_size);

}  // namespace mcpp
