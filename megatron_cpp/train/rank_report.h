// What each rank of a run spends: memory, waiting for other pipeline stages, communication that nothing hid.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/state.h"
#include "tensor/device.h"

namespace mcpp {

/// Where the time of one rank goes.
struct RankSeconds {
  double clock = 0;          ///< all of it
  double pipeline = 0;       ///< waiting for messages of the pipeline
  double communication = 0;  ///< inside other communication

  RankSeconds operator-(const RankSeconds& b) const {
    return {clock - b.clock, pipeline - b.pipeline, communication - b.communication};
  }
  RankSeconds& operator+=(const RankSeconds& b) {
    clock += b.clock, pipeline += b.pipeline, communication += b.communication;
    return *this;
  }
};

struct RankStats {
  double peak_memory_bytes = 0;      ///< of tensors, since the start
  double bubble = 0;                 ///< share of its time that the rank waits for messages of the pipeline
  double exposed_communication = 0;  ///< share of its time inside other communication
  /// Of tensors of each MemoryClass, since the start; their peaks may lie at different moments.
  std::array<double, kMemoryClasses> peak_by_class{};
};

/// Every rank's, by rank, on all ranks.
std::vector<RankStats> gather_rank_stats(const RankStats& mine, Communicator& world, Device& device);
/// One line per rank.
std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology);

/// Seconds since the start that this rank spent in communication other than the pipeline's messages.
double exposed_seconds(const ParallelState& parallel);

}  // namespace mcpp
