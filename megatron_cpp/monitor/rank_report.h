// What each rank of a run spends: memory, waiting for other pipeline stages, communication that nothing hid.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "megatron_cpp/step/training_state.h"
#include "parallel/state.h"
#include "tensor/device.h"

namespace mcpp {

/// Where the time of one rank goes.
struct RankSeconds {
  double clock = 0;          ///< all of it; since when, only differences tell
  double pipeline = 0;       ///< waiting for other stages of the pipeline
  double communication = 0;  ///< inside other communication

  /// In which it waited for nobody: what a slow rank has more of than the others, which wait for it.
  double compute() const { return clock - pipeline - communication; }
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
  double bubble = 0;                 ///< share of its time that the rank waits for other stages of the pipeline
  double exposed_communication = 0;  ///< share of its time inside other communication
  double compute_ms = 0;             ///< of an iteration, without both
  /// Of tensors of each MemoryClass, since the start; their peaks may lie at different moments.
  std::array<double, kMemoryClasses> peak_by_class{};
  BytesAwayByClass away{};  ///< what is kept there instead (TrainingState::bytes_away())
};

/// Memory of one class in one place, of each rank.
struct MemoryColumn {
  enum class Place : u8 { Here, InHost, OnDisk };  ///< the rank's device, and what is kept elsewhere instead
  MemoryClass of;
  Place place;
  std::vector<double> bytes;
};

/// The mean of them, and the largest peak of memory.
RankStats mean_of(const std::vector<RankStats>& ranks);
/// Every rank's, by rank, on all ranks.
std::vector<RankStats> gather_rank_stats(const RankStats& mine, Communicator& world, Device& device);
/// One line per rank: where its time goes.
std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology);
/// By class: of each that some rank uses, what is here, and where some rank has any, what is in host memory and on
/// disks.
std::vector<MemoryColumn> memory_columns(const std::vector<RankStats>& ranks);
/// One line per rank: these columns.
std::string memory_table(const std::vector<RankStats>& ranks);

/// What this rank spent so far.
RankSeconds spent_by_rank(const TrainingState& state, const ParallelState& parallel);

}  // namespace mcpp
