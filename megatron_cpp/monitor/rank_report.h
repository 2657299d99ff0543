// Resource use of each rank: memory, timers, pipeline bubbles and exposed communication, compared with other ranks and
// with the prediction.
#pragma once
#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/step/training_state.h"
#include "parallel/state.h"
#include "plan/measured_run.h"
#include "tensor/device.h"

namespace mcpp {

/// Breakdown of the time of one rank, in seconds.
struct RankTimings {
  double clock = 0;          ///< total time; only differences are meaningful
  double pipeline = 0;       ///< waiting for other pipeline stages
  double communication = 0;  ///< inside other communication

  /// Returns the time during which the rank did not wait. It is largest on the slowest rank, for which the others wait.
  double compute() const { return clock - pipeline - communication; }
  RankTimings operator-(const RankTimings& b) const {
    return {clock - b.clock, pipeline - b.pipeline, communication - b.communication};
  }
  RankTimings& operator+=(const RankTimings& b) {
    clock += b.clock, pipeline += b.pipeline, communication += b.communication;
    return *this;
  }
};

struct RankStats {
  double peak_memory_bytes = 0;      ///< peak of tensors since start-up
  double bubble = 0;                 ///< fraction of time spent waiting for other pipeline stages
  double exposed_communication = 0;  ///< fraction of time spent in other communication
  double compute_ms = 0;             ///< milliseconds per iteration, without waiting and communication
  /// Peak bytes per MemoryClass since start-up. Peaks of different classes may occur at different times.
  std::array<double, kMemoryClasses> peak_by_class{};
  OffloadedBytesByClass offloaded{};  ///< offloaded bytes (TrainingState::offloaded_bytes())
};

/// Memory of one class in one location, for each rank.
struct MemoryColumn {
  enum class MemoryLocation : u8 {
    OnDevice,
    InHost,
    OnDisk
  };  ///< on the rank's device, or offloaded to host memory or disk
  MemoryClass memory_class;
  MemoryLocation location;
  std::vector<double> bytes;
};

/// Returns the mean over ranks, except for memory, for which it returns the largest peak.
RankStats mean_of(const std::vector<RankStats>& ranks);
/// Returns the values of all ranks, in rank order, on all ranks. Numbers may be non-finite. Collective.
std::vector<nlohmann::json> gather_values(const nlohmann::json& local, Communicator& world);
/// Gathers the statistics of all ranks, in rank order, on rank 0; all others receive an empty list. Collective.
std::vector<RankStats> gather_rank_stats(const RankStats& local, Communicator& world);
/// Returns the columns of each memory class that any rank uses: device memory and, if any rank offloads to it, host
/// memory or disk.
std::vector<MemoryColumn> memory_columns(const std::vector<RankStats>& ranks);
/// Returns the time breakdown of this rank since start-up.
RankTimings rank_timings(const TrainingState& state, const ParallelState& parallel);

// Duration of the parts of an iteration on every rank, as reported by Megatron-LM's timers.

/// One part of an iteration, such as "forward-compute".
struct TimerStats {
  struct RankTime {
    int rank;
    double ms;  ///< milliseconds per iteration
  };
  std::string name;
  std::vector<RankTime> ranks;  ///< ranks that have this part

  double min() const;
  double max() const;
};

/// Gathers the timers of all ranks by name on rank 0; all others receive an empty list. `seconds` has the total of this
/// rank for each name over `iterations` iterations. Collective.
std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world);

// Straggler detection: ranks that compute longer than their peers, and groups whose communication is slower than that
// of their peers. Means over ranks do not reveal stragglers, since all other ranks appear to be waiting.

/// Time of one rank in the communication of one of its groups, over an interval.
struct GroupSeconds {
  int first = 0;       ///< world rank of the group's first rank
  double seconds = 0;  ///< seconds spent inside calls
  double bytes = 0;    ///< bytes sent by the rank
};
using GroupSecondsByName = std::map<std::string, GroupSeconds>;

/// Returns the times of all groups of two or more ranks, except those that carry pipeline messages, where waiting is
/// part of the schedule.
GroupSecondsByName group_seconds(const ParallelState& parallel);
GroupSecondsByName operator-(const GroupSecondsByName& a, const GroupSecondsByName& b);
/// Gathers the times of all ranks, in rank order, on rank 0; all others receive an empty list. Collective.
std::vector<GroupSecondsByName> gather_group_seconds(const GroupSecondsByName& local, Communicator& world);

/// Rank or group that is slower than its peers.
struct Straggler {
  std::string what;  ///< "rank 3", "the group dp (ranks 1 3)"; stable across calls
  std::string text;  ///< description in a sentence
  int rank = -1;     ///< the slow rank, -1 for a group
};

/// Returns the slowest rank among those that compute at least `factor` times as long as the median of the other ranks
/// of their pipeline stage, or std::nullopt if there is none.
std::optional<Straggler> find_slow_rank(const std::vector<RankStats>& ranks, const Topology& topology, double factor);

/// Returns the slowest group among those that take at least `factor` times as long as other groups of the same name, or
/// std::nullopt if there is none. The time of a group is the minimum over its members, because the member that arrives
/// last waits only for the network. Groups that take less than a hundredth of `window_seconds` are ignored.
std::optional<Straggler> find_slow_group(const std::vector<GroupSecondsByName>& ranks, double window_seconds,
                                         double factor);

/// Filter that reports each straggler once, when it is detected for the second time in a row.
class StragglerReporter {
 public:
  std::optional<std::string> add(const std::optional<Straggler>& straggler);

 private:
  std::string last_;
  bool is_reported_ = false;
};

// Comparison of measured step times with the prediction for the layout; logs the components that deviate.

/// Returns the measurement of the steps that a log line covers, which take `seconds` each. It consists of the
/// statistics of the ranks and, if known, the seconds that they waited in each group, summed over `iterations`.
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
