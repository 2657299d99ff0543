// Position of one stage in a run with stages.
#pragma once
#include <string>
#include <vector>

#include "base/types.h"
#include "data/dataset/stage_text.h"

namespace mcpp {

/// Stage of a run: a range of its iterations, for which a [[stage]] table changes some keys of the configuration.
struct Stage {
  std::string name;
  i64 number = 1;           ///< counted from 1
  i64 stages = 1;           ///< number of stages of the run
  i64 first_iteration = 0;  ///< iterations before the stage
  i64 iterations = 0;
  i64 first_sample = 0;  ///< samples before the stage
  i64 samples = 0;
  i64 first_token = 0;            ///< tokens before the stage
  i64 run_iterations = 0;         ///< iterations of all stages
  i64 run_batch_size = 1;         ///< training.global_batch_size outside of the stages
  bool has_own_schedule = false;  ///< the learning rate follows a schedule of the stage, not that of the run
  std::vector<StageText> texts;   ///< texts of the stages up to this one
  std::string toml;               ///< the stage's table

  i64 last_iteration() const { return first_iteration + iterations; }
  i64 last_sample() const { return first_sample + samples; }
  bool is_last() const { return number == stages; }
  /// Returns true if a run that has finished `iteration` iterations resumes in this stage. After its last iteration,
  /// the stage only runs the evaluations that are missing.
  bool resumes_at(i64 iteration) const {
    return (iteration > first_iteration || number == 1) && (iteration <= last_iteration() || is_last());
  }
  /// Returns `stage 2 of 3, "long"`.
  std::string title() const;
};

}  // namespace mcpp
