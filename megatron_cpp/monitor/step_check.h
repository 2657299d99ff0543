// What a training spends, held against what was predicted of its layout: the log names the part that is off.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "megatron_cpp/monitor/stragglers.h"
#include "plan/measured_run.h"

namespace mcpp {

/// Of the steps of a line of the log, `seconds` each: what its ranks spent, and in which groups they waited, if that is
/// known, in all `iterations` together.
MeasuredRun measured_step(double seconds, const std::vector<RankStats>& ranks,
                          const std::vector<GroupSecondsByName>& groups, i64 iterations);

class StepCheck {
 public:
  explicit StepCheck(PredictedStep predicted) : predicted_(std::move(predicted)) {}

  /// What is to be logged of a line whose steps had so many samples: of each part once, when it is much off for the
  /// second time in a row. Steps of another batch than the predicted one tell nothing.
  std::vector<std::string> add(i64 global_batch_size, const MeasuredRun& measured);

 private:
  PredictedStep predicted_;
  std::map<std::string, StragglerWatch> parts_;
};

}  // namespace mcpp
