// Comparison of measured step times with the prediction for the layout; logs the components that deviate.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "megatron_cpp/monitor/stragglers.h"
#include "plan/measured_run.h"

namespace mcpp {

/// Returns the measurement of the steps of a log line, `seconds` each: the statistics of the ranks and, if known, the
/// seconds that they waited in each group, summed over `iterations`.
MeasuredRun make_measured_run(double seconds, const std::vector<RankStats>& ranks,
                              const std::vector<GroupSecondsByName>& groups, i64 iterations);

class PredictionCheck {
 public:
  explicit PredictionCheck(PredictedStep predicted) : predicted_(std::move(predicted)) {}

  /// Returns the messages to log for steps of `global_batch_size` samples. Each component is reported once, when it
  /// exceeds the tolerance for the second time in a row. Steps of a batch size other than the predicted one are
  /// ignored.
  std::vector<std::string> add(i64 global_batch_size, const MeasuredRun& measured);

 private:
  PredictedStep predicted_;
  std::map<std::string, StragglerReporter> parts_;
};

}  // namespace mcpp
