// Benchmark of attention methods for context parallelism; see docs/context_parallelism.md.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/bench/bench.h"
#include "parallel/state.h"

namespace mcpp {

/// Method of partitioning each sample across ranks.
struct AttentionMethod {
  std::string name;  ///< "p2p", "a2a+p2p 2x4"
  Layout layout;
};
/// Returns the methods available for `ranks` ranks and the model's heads; for one rank, only attention without
/// communication.
std::vector<AttentionMethod> attention_methods(const ModelConfig& config, int ranks);

/// Result for one layer's forward and backward pass over one microbatch.
struct AttentionRow {
  AttentionMethod method;
  double forward_s = 0, backward_s = 0;  ///< medians of the slowest rank
  double sent_bytes = 0;                 ///< maximum over ranks
  double exposed_s = 0;                  ///< mean over ranks of the time in exposed communication
  double balance = 1;                    ///< compute time of the slowest rank relative to the fastest
  i64 runs = 1;                          ///< contiguous pieces of each sample on a rank
};

struct AttentionBench {
  i64 batch = 1;
  /// Lengths of packed documents, which do not attend to each other, repeated until a sample is full; empty = one
  /// document per sample.
  std::vector<i64> document_lengths = {};
  DType dtype = DType::F32;
  BenchTiming timing = {};
};

/// Runs attention with the model's heads and seq_length on random queries, keys and values. Collective over `world`.
AttentionRow bench_attention(const ModelConfig& config, const AttentionMethod& method, const AttentionBench& bench,
                             Communicator& world, Device& device);

}  // namespace mcpp
