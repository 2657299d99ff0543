// Straggler detection: ranks that compute longer than their peers, and groups whose communication is slower than that
// of their peers. Means over ranks do not reveal them, since all other ranks show up as waiting.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron_cpp/monitor/rank_report.h"
#include "plan/measured_run.h"

namespace mcpp {

/// Time of one rank in the communication of one of its groups, over an interval.
struct GroupSeconds {
  int first = 0;       ///< world rank of the group's first rank
  double seconds = 0;  ///< inside calls
  double bytes = 0;    ///< sent by the rank
};
using GroupSecondsByName = std::map<std::string, GroupSeconds>;

/// Returns the times of all groups of two or more ranks, except those that carry pipeline messages, where waiting is
/// part of the schedule.
GroupSecondsByName group_seconds(const ParallelState& parallel);
GroupSecondsByName operator-(const GroupSecondsByName& a, const GroupSecondsByName& b);
/// Gathers the times of all ranks, in rank order, on all ranks. Collective.
std::vector<GroupSecondsByName> gather_group_seconds(const GroupSecondsByName& local, Communicator& world);

/// Rank or group that is slower than its peers.
struct Straggler {
  std::string what;  ///< "rank 3", "the group dp (ranks 1 3)"; stable across calls
  std::string text;  ///< description in a sentence
};

/// Returns the slowest of the ranks that compute at least `factor` times as long as the median of the other ranks of
/// their pipeline stage, or std::nullopt.
std::optional<Straggler> find_slow_rank(const std::vector<RankStats>& ranks, const Topology& topology, double factor);

/// Returns the slowest of the groups that take at least `factor` times as long as the others of the same name, or
/// std::nullopt. A group is measured by the member that waits least: it arrives last and waits only for the network.
/// Groups that take less than a hundredth of `window_seconds` are ignored.
std::optional<Straggler> find_slow_group(const std::vector<GroupSecondsByName>& ranks, double window_seconds,
                                         double factor);

/// Returns the message of a straggler once, when it is detected for the second time in a row.
class StragglerReporter {
 public:
  std::optional<std::string> add(const std::optional<Straggler>& found);

 private:
  std::string last_;
  bool is_reported_ = false;
};

// Comparison of measured step times with the prediction for the layout; logs the components that deviate.

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
