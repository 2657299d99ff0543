// Resource use of each rank: memory, pipeline bubbles and exposed communication.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/step/training_state.h"
#include "parallel/state.h"
#include "tensor/device.h"

namespace mcpp {

/// Breakdown of the time of one rank, in seconds.
struct RankTimings {
  double clock = 0;          ///< total time; only differences are meaningful
  double pipeline = 0;       ///< waiting for other pipeline stages
  double communication = 0;  ///< inside other communication

  /// Returns the time spent not waiting. A slow rank has more of it than the others, which wait for it.
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
  MemoryClass of;
  MemoryLocation location;
  std::vector<double> bytes;
};

/// Returns the mean over ranks, except for memory, of which it returns the largest peak.
RankStats mean_of(const std::vector<RankStats>& ranks);
/// Gathers the statistics of all ranks, in rank order, on all ranks. Collective.
std::vector<RankStats> gather_rank_stats(const RankStats& local, Communicator& world, Device& device);
/// Formats a table of one line per rank: where its time goes.
std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology);
/// Returns the columns of each memory class that any rank uses: device memory and, if any rank offloads to them, host
/// memory and disk.
std::vector<MemoryColumn> memory_columns(const std::vector<RankStats>& ranks);
/// Formats these columns as a table of one line per rank.
std::string memory_table(const std::vector<RankStats>& ranks);

/// Returns the time that this rank has spent so far.
RankTimings rank_timings(const TrainingState& state, const ParallelState& parallel);

}  // namespace mcpp
