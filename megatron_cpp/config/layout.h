// From the configuration to the layout of a run over ranks.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/stages.h"
#include "parallel/topology.h"

namespace mcpp {

ParallelSizes parallel_sizes(const Config& config);
/// Ranks that read different samples, of a world that layout_problems() accepts.
i64 data_parallel_size(const Config& config, int world_size);
/// Ranks over which gradients are summed and ZeRO shares: those, and those that see other positions of their samples.
i64 data_context_size(const Config& config, int world_size);
/// Ranks over which the gradients of experts are summed.
i64 expert_data_size(const Config& config, int world_size);
/// Of one rank in one step at this global batch size, and at the largest of the run.
i64 microbatches_of(i64 global_batch_size, const Config& config, int world_size);
i64 microbatches_per_step(const Config& config, int world_size);
StageSplit stage_split(const Config& config);
/// The pipeline's schedule for so many microbatches.
Schedule schedule_of(const Config& config, int microbatches);
/// Position in the pipeline of the rank with the output layer.
int output_rank(const Config& config);

/// As a number of ranks: not known yet. What depends on it is not checked.
inline constexpr int kAnyWorld = 0;
/// Every reason why this configuration cannot run on `world_size` ranks, with the nearest values that could. Empty when
/// it can.
std::vector<std::string> layout_problems(const Config& config, int world_size);
/// Throws BadInput with all of them.
void check_layout(const Config& config, int world_size);

}  // namespace mcpp
