// The groups of ranks that one rank works in. Made once from the world and handed down by reference.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "comm/metered.h"
#include "parallel/topology.h"

namespace mcpp {

struct ParallelState {
  Topology topology;
  AxisValues me;         ///< in the dense grid
  AxisValues expert_me;  ///< in the expert grid
  Communicator& world;   ///< outlives this

  std::unique_ptr<Communicator> tp;  ///< those that share one copy of each layer
  std::unique_ptr<Communicator> dp;  ///< those that hold the same weights and read different samples
  /// Of dp: those that together hold one copy of what ZeRO shares, and those that hold the same part of it.
  std::unique_ptr<Communicator> dp_shard, dp_replicate;
  std::unique_ptr<Communicator> pp;           ///< the stages of one pipeline, in order: activations go over it
  std::unique_ptr<Communicator> pp_backward;  ///< the same ranks once more, for the gradients of activations
  std::unique_ptr<Communicator> model;        ///< those that together hold one copy of the weights: tp x pp, for norms
  /// The ranks with word embeddings; null on ranks without.
  std::unique_ptr<Communicator> embedding;

  /// What each of these groups sent and waited for, by its name above.
  std::map<std::string, std::shared_ptr<CommMeter>> meters;
};

/// Called by all ranks of `world`. `output_rank` is the position in the pipeline of the rank with the output layer,
/// -1 for the last one. The recorder, if any, notes what the groups do and outlives them. Throws BadInput when the
/// world does not divide by `sizes`.
ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int output_rank = -1,
                                  FlightRecorder* recorder = nullptr);

}  // namespace mcpp
