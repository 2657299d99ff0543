// Description of a run without executing it: the output of pretrain --dry_run and the header of a run's log.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "model/module_memory.h"

namespace mcpp {

/// Returns the peak memory of a rank for each pipeline position with the largest global batch. The memory does not
/// depend on the tensor- and data-parallel positions; with ExpertLoad::Max, it is the maximum over these positions.
std::vector<MemoryEstimate> estimate_memory_by_stage(const Config& config, int world_size,
                                                     ExpertLoad load = ExpertLoad::Even);

/// Returns the bytes of a rank's part of a local checkpoint (checkpoint.local_save), for each pipeline position.
std::vector<double> local_part_bytes_by_stage(const Config& config, int world_size);

/// Returns the max number of parts and copies that a rank keeps in checkpoint.local_save, including those that are
/// being written. If local_keep_latest_k is 0 (keep all), counts one checkpoint and the next one.
i64 max_local_parts(const CheckpointConfig& config);

/// Returns the workspace of CPU attention over all threads of a rank, which memory estimates exclude. Returns 0 for
/// GPUs.
double attention_scratch_bytes(const Config& config, int cores_per_rank = 0);

/// Returns the memory of each module, for each pipeline position. Assumes balanced experts.
std::vector<MemoryByModule> module_memory_by_stage(const Config& config, int world_size);

/// Returns the optimizer state per weight.
StatesPerWeight states_per_weight(const Config& config);

/// Describes the run: parameters by part, layout over `world_size` ranks, memory by class for the ranks that need most,
/// batches, iterations, learning rate and operations.
std::string describe_run(const Config& config, int world_size, int cores_per_rank = 0);

}  // namespace mcpp
