// Benchmarks on random data: matrix products, single operations and whole training steps. Reports medians of several
// runs after a warm-up.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/setup/device_peaks.h"
#include "megatron_cpp/step/model_stage.h"
#include "model/config/config.h"

namespace mcpp {

/// Returns every product of one forward and backward pass over `tokens` tokens: forward, dgrad and wgrad of each linear
/// layer.
std::vector<GemmCase> step_gemms(const ModelConfig& config, i64 tokens);

/// Row of a table, or one JSON object.
struct BenchRow {
  std::string name;
  double seconds = 0;       ///< of consecutive calls
  double cold_seconds = 0;  ///< for products with operands as cold as in a step; otherwise 0
  double flops = 0;         ///< 0 if not applicable
  double bytes = 0;         ///< minimum bytes moved; 0 if not applicable
  i64 count = 1;
};

std::vector<BenchRow> bench_gemms(const std::vector<GemmCase>& cases, DType dtype, Device& device,
                                  const BenchTiming& timing);
/// Times norms, activations, cross entropy, AdamW and others at the sizes of one pass over [s, b] tokens of the model.
std::vector<BenchRow> bench_ops(const ModelConfig& config, i64 batch, DType dtype, Device& device,
                                const BenchTiming& timing);

/// Returns the shard of the context's rank of a microbatch of random tokens.
MicroBatch random_batch(const ModelContext& context, i64 micro_batch_size);

/// Measures memory copy bandwidth in bytes per second, counting reads and writes.
double copy_bandwidth(Device& device);

}  // namespace mcpp
