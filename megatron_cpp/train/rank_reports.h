// What the ranks of a training spend, told at lines of the log: a table of all, and who keeps the others waiting.
#pragma once
#include <optional>
#include <vector>

#include "base/stored_ref.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/metrics/log_window.h"
#include "megatron_cpp/monitor/metrics/metrics.h"
#include "megatron_cpp/monitor/prediction_check.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Called by all ranks alike.
class RankReports {
 public:
  /// `predicted`: of a step of this layout; nothing where nobody asked for it.
  RankReports(StoredRef<LoggingConfig> config, Session& session, StoredRef<Log> log,
              const std::optional<PredictedStep>& predicted);

  /// Of the iterations of `window`, the last of which is `iteration`; `away`: what this rank keeps elsewhere. To the
  /// metrics, once to the log too, after the first line that is not of a cold start; and warnings. Gives what ranks
  /// spend, by rank; nothing with one rank.
  std::vector<RankStats> tell(i64 iteration, const LogWindow& window, const OffloadedBytesByClass& away,
                              MetricsWriter& metrics);

 private:
  RankStats own(const LogWindow& window, const OffloadedBytesByClass& away) const;
  /// What ranks spent in their groups since the last line.
  std::vector<GroupSecondsByName> spent_in_groups();
  void name_stragglers(const std::vector<RankStats>& ranks, const std::vector<GroupSecondsByName>& groups,
                       double seconds);

  const LoggingConfig& config_;
  Session& session_;
  const Log& log_;
  bool are_shown_ = false, is_warm_ = false;
  i64 tables_ = 0;                    // gathered so far
  GroupSecondsByName group_seconds_;  // at the last line
  StragglerReporter slow_ranks_, slow_groups_;
  std::optional<PredictionCheck> check_;
};

}  // namespace mcpp
