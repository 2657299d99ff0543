// Benchmarks on random data: GEMMs, single operations and complete training steps. Results are medians of several runs
// after a warm-up.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/integer_math.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/device_peaks.h"
#include "megatron_cpp/step/model_stage.h"
#include "model/config/config.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace mcpp {

// Operands of GEMMs that are as cold in the caches as in a training step.

/// Bytes of the working set for cold operands. In a step, the previous layer's output is warm, while weights, saved
/// activations and gradient sums were last used before all other layers. This many bytes exceed a rank's share of the
/// caches.
constexpr i64 kColdBytes = 64 << 20;

/// Matrices stored consecutively in more memory than the caches hold, so that a matrix is out of cache when its turn
/// comes again.
class ColdMatrices {
 public:
  ColdMatrices() = default;
  /// `values` must hold at least the largest matrix.
  explicit ColdMatrices(Tensor values) : values_(std::move(values)) {}

  Tensor next(i64 rows, i64 columns) {
    constexpr i64 kLine = 64;  // in elements; at least a cache line
    const i64 count = rows * columns;
    if (next_ + count > values_.numel()) next_ = 0;
    const Tensor matrix = values_.flat(next_, count).view({rows, columns});
    next_ += round_up(count, kLine);
    return matrix;
  }

 private:
  Tensor values_;
  i64 next_ = 0;
};

/// Returns every GEMM with a weight, except those of routers, of one forward and backward pass of a microbatch:
/// forward, dgrad and wgrad of each linear layer. Experts have equal numbers of tokens.
std::vector<GemmCase> step_gemms(const ModelConfig& config, i64 micro_batch_size, DType dtype);

/// Row of a result table, or one JSON object.
struct BenchRow {
  std::string name;
  double seconds = 0;       ///< time per call in a sequence of consecutive calls
  double cold_seconds = 0;  ///< time of GEMMs whose operands are as cold as in a step; 0 for other operations
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

// Estimate of the step time without running a step.

/// Describes the minimum and the typical step time, computed from the rates of GEMMs measured on `device`.
std::string describe_step_time(const Config& config, int world_size, Device& device);

}  // namespace mcpp
