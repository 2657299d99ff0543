// Reports of what each rank spent per log interval: a table of all ranks, and warnings about stragglers.
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

/// Gathers and reports the statistics of all ranks. All member functions are collective.
class RankReporter {
 public:
  /// `predicted` is the planner's prediction of a step of this layout, if requested.
  RankReporter(StoredRef<LoggingConfig> config, Session& session, StoredRef<Log> log,
               const std::optional<PredictedStep>& predicted);

  /// Reports the iterations of `window`, the last of which is `iteration`. `offloaded` counts the bytes that this rank
  /// offloads. Writes the table of ranks to the metrics, and once to the log, after the first interval that excludes
  /// start-up. Logs warnings. Returns the statistics by rank; empty with one rank.
  std::vector<RankStats> report(i64 iteration, const LogWindow& window, const OffloadedBytesByClass& offloaded,
                                MetricsWriter& metrics);

 private:
  RankStats local_stats(const LogWindow& window, const OffloadedBytesByClass& offloaded) const;
  /// Returns the time each rank spent in each of its groups since the last report. Collective.
  std::vector<GroupSecondsByName> gather_new_group_seconds();
  void warn_of_stragglers(const std::vector<RankStats>& ranks, const std::vector<GroupSecondsByName>& groups,
                          double seconds);

  const LoggingConfig& config_;
  Session& session_;
  const Log& log_;
  bool has_logged_table_ = false, is_warm_ = false;
  i64 tables_ = 0;                    // number of gathered tables
  GroupSecondsByName group_seconds_;  // at the last report
  StragglerReporter slow_ranks_, slow_groups_;
  std::optional<PredictionCheck> check_;
};

}  // namespace mcpp
