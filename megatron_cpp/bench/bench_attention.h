// Timing of attention over context-parallel ranks, one way against another: docs/context_parallelism.md.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/bench/bench.h"
#include "parallel/state.h"

namespace mcpp {

/// A way for the ranks of a world to share each sample.
struct AttentionWay {
  std::string name;  ///< "p2p", "a2a+p2p 2x4"
  CpCommType comm_type;
  i64 heads = 1;  ///< SequenceCut
};
/// Those that so many ranks have, for these heads; alone, the one of one rank.
std::vector<AttentionWay> attention_ways(const ModelConfig& config, int ranks);

/// Of one layer's forward and backward pass over one microbatch.
struct AttentionRow {
  AttentionWay way;
  double forward_s = 0, backward_s = 0;  ///< of the slowest rank, medians
  double sent_bytes = 0;                 ///< by the rank that sends most
  double exposed_s = 0;                  ///< a rank's mean time in communication that nothing hid
  double balance = 1;                    ///< computing time of the slowest rank over that of the fastest
  i64 runs = 1;                          ///< pieces of each sample that a rank has
};

struct AttentionBench {
  i64 batch = 1;
  /// Of packed documents that do not see one another, in turn until a sample is full; empty = one to a sample.
  std::vector<i64> document_lengths = {};
  DType dtype = DType::F32;
  BenchTiming timing = {};
};

/// Random queries, keys and values of the model's heads at its seq_length. Called by all ranks of `world`.
AttentionRow bench_attention(const ModelConfig& config, const AttentionWay& way, const AttentionBench& bench,
                             Communicator& world, Device& device);

}  // namespace mcpp
