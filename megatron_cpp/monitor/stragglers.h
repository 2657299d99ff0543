// Who keeps the others waiting: ranks that compute longer than those which do the same, and groups whose messages
// travel longer than those of others. Whoever waits for them shows as waiting, so that no mean over ranks finds them.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron_cpp/monitor/rank_report.h"

namespace mcpp {

/// A rank's time in the communication of one of its groups, in a part of the run.
struct GroupSeconds {
  int first = 0;       ///< rank of the group, of the world
  double seconds = 0;  ///< inside calls
  double bytes = 0;    ///< that the rank sent
};
using GroupSecondsByName = std::map<std::string, GroupSeconds>;

/// Of the groups of several ranks that carry no messages of the pipeline, where all wait for the schedule.
GroupSecondsByName group_seconds(const ParallelState& parallel);
GroupSecondsByName operator-(const GroupSecondsByName& a, const GroupSecondsByName& b);
/// Every rank's, by rank, on all ranks.
std::vector<GroupSecondsByName> gather_group_seconds(const GroupSecondsByName& mine, Communicator& world);

/// Something that is `times` as slow as what it is compared with.
struct Straggler {
  std::string what;  ///< "rank 3", "the group dp (ranks 1 3)"; the same each time
  std::string text;  ///< a sentence about it
};

/// The slowest rank of those that compute `factor` times as long as the median of the others of their pipeline stage.
std::optional<Straggler> slow_rank(const std::vector<RankStats>& ranks, const Topology& topology, double factor);

/// Likewise the slowest group, of those which have others of their name. In a group the member counts that waits least:
/// it comes last, so that it waits for the network alone. Groups that take less than a hundredth of `window_seconds`
/// are left alone.
std::optional<Straggler> slow_group(const std::vector<GroupSecondsByName>& ranks, double window_seconds, double factor);

/// Says of a straggler what is to be logged: once, when it stands out for the second time in a row.
class StragglerWatch {
 public:
  std::optional<std::string> add(const std::optional<Straggler>& found);

 private:
  std::string last_;
  bool is_told_ = false;
};

}  // namespace mcpp
