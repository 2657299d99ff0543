// Training of all stages of a run, one after the other.
#pragma once
#include <functional>
#include <vector>

#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/train/trainer.h"

namespace mcpp {

/// Trains with the configurations of training_configs(), starting in the stage of the newest intact checkpoint. Each
/// later stage resumes from the checkpoint at the end of the previous stage, with its own configuration. `first` is the
/// stage of the newest checkpoint, which may be damaged. `on_training` is called before the first iteration. Returns
/// when the last stage has ended, or when a stage stops early. Collective over `world`.
ExitCode train_stages(const std::vector<PlannedRun>& stages, std::size_t first, const World& world,
                      const SignalWatch& signals, const Log& log, const std::function<void()>& on_training);

}  // namespace mcpp
