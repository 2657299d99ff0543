// Duration of the parts of an iteration on every rank, as reported by Megatron-LM's timers.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/config/sections/logging_config.h"

namespace mcpp {

/// One part of an iteration, such as "forward-compute".
struct TimerStats {
  struct RankTime {
    int rank;
    double ms;  ///< per iteration
  };
  std::string name;
  std::vector<RankTime> ranks;  ///< ranks that have this part

  double min() const;
  double max() const;
};

/// Gathers the timers of all ranks by name. Collective. `seconds` holds this rank's total for each name over
/// `iterations` iterations.
std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world);

/// Formats the timers as Megatron-LM's log lines; "" without timers.
std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option);

}  // namespace mcpp
