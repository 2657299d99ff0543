// What a configuration would do, without doing it: the text of pretrain --dry_run, and the head of a real run's log.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "model/module_memory.h"

namespace mcpp {

/// Peak memory of a rank of each position in the pipeline, with the largest global batch. Ranks that differ in their
/// tensor- or data-parallel position alone have the same; with ExpertLoad::Most that is what one of them comes to.
std::vector<MemoryEstimate> estimate_memory_by_stage(const Config& config, int world_size,
                                                     ExpertLoad load = ExpertLoad::Even);

/// What attention on a CPU computes in, beside the estimate: of all threads of a rank. 0 for a training on GPUs.
double attention_scratch_bytes(const Config& config, int cores_per_rank = 0);

/// Of each position in the pipeline, what each of its modules takes; with experts as if equally busy.
std::vector<MemoryByModule> module_memory_by_stage(const Config& config, int world_size);

/// What its optimizer keeps of each weight.
StatesPerWeight states_per_weight(const Config& config);

/// Parameters by part, the layout over `world_size` ranks, memory by class of the ranks that need most, batches,
/// iterations, learning rate and operations of the run.
std::string run_plan(const Config& config, int world_size, int cores_per_rank = 0);

}  // namespace mcpp
