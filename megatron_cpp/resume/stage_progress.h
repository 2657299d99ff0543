// Progress of a run through its stages, as stored in checkpoints.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// State at the start of the stage in progress.
struct StageProgress {
  i64 number = 0;                     ///< stage, counted from 1; 0 = a run without stages
  i64 trained_iterations = 0;         ///< steps that were not skipped before the stage
  std::vector<i64> text_starts = {};  ///< Datasets::stage_starts of the stage
};

/// Stage in which a checkpoint was saved.
struct SavedStage : StageProgress {
  std::string name;
  i64 first_iteration = 0, iterations = 0, first_sample = 0;
};

/// Stores the stage of `config` and its progress in a checkpoint's state. Stores nothing for a run without stages.
void store_stage(const Config& config, const StageProgress& progress, RunState& run);
/// Returns the stage stored in the state of `checkpoint`; its number is 0 without stages. Throws BadInput if the state
/// is damaged.
SavedStage read_stage(const RunState& run, const std::string& checkpoint);

/// Compares the stage of `config` with the stage in which `checkpoint` was saved. Returns true if they are the same.
/// Throws BadInput if only one of the runs has stages, or if the stages up to this one have different lengths than when
/// the checkpoint was saved.
bool check_same_stage(const Config& config, const RunState& run, const std::string& checkpoint);

/// Throws BadInput if a key changed that cannot change within a stage, even if checkpoint.allow_changed_keys names it.
void check_fixed_in_stage(const Config& saved, const Config& now, const std::string& checkpoint);

/// Throws BadInput if `starts` (Datasets::stage_starts) differ from the ones that a checkpoint stored.
void check_text_starts(const Config& config, const StageProgress& saved, const std::vector<std::vector<i64>>& starts);

/// Replaces the lengths of two configurations of the same stage so that they can be compared with schedule_warnings():
/// if the stage has its own schedule, by the length of the stage.
void set_schedule_lengths(const SavedStage& stage, Config& saved, Config& now);

}  // namespace mcpp
