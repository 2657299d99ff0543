// What a configuration would do, without doing it: the text of pretrain --dry_run, and the head of a real run's log.
#pragma once
#include <string>

#include "megatron_cpp/config.h"

namespace mcpp {

/// Parameters by part, the layout over `world_size` ranks, memory by class, batches, iterations, learning rate and
/// operations of the run.
std::string run_plan(const Config& config, int world_size);

}  // namespace mcpp
