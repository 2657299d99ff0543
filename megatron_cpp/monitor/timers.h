// How long the parts of an iteration take on every rank, as Megatron-LM's timers tell it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/config/sections/logging_config.h"

namespace mcpp {

/// One part of an iteration, such as "forward-compute".
struct TimerStats {
  struct OfRank {
    int rank;
    double ms;  ///< of an iteration
  };
  std::string name;
  std::vector<OfRank> ranks;  ///< those that have such a part

  double min() const;
  double max() const;
};

/// Of all ranks, on all of them, by name. `seconds`: of `iterations` iterations on this rank, by name.
std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world);

/// Megatron-LM's lines; "" without timers.
std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option);

}  // namespace mcpp
