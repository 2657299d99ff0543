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

// GEMM operands that are as cold in the caches as in a training step.

/// Working set of cold operands in bytes, which exceeds a rank's share of the caches. In a step, only the output of the
/// previous layer is warm; all other layers ran since weights, saved activations and gradient sums were last used.
constexpr i64 kColdBytes = 64 << 20;

/// Matrices stored consecutively in memory larger than the caches and used in turn, so that each matrix is cold when
/// used.
class ColdMatrices {
 public:
  ColdMatrices() = default;
  /// `values` provides the memory and must have at least the elements of the largest matrix.
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

/// Row of a result table and element of the JSON output.
struct BenchRow {
  std::string name;
  double seconds = 0;       ///< time per call in a sequence of consecutive calls
  double cold_seconds = 0;  ///< time per GEMM with cold operands, as in a step; 0 for other operations
  double flops = 0;         ///< 0 if not applicable
  double bytes = 0;         ///< minimum bytes moved; 0 if not applicable
  i64 count = 1;
};

std::vector<BenchRow> bench_gemms(const std::vector<GemmCase>& cases, DType dtype, Device& device,
                                  const BenchTiming& timing);
/// Measures norms, activations, cross entropy, AdamW and other ops at the sizes of one pass over [s, b] tokens of the
/// model.
std::vector<BenchRow> bench_ops(const ModelConfig& config, i64 batch, DType dtype, Device& device,
                                const BenchTiming& timing);

/// Returns this rank's shard of a microbatch of random tokens.
MicroBatch random_batch(const ModelContext& context, i64 micro_batch_size);

/// Measures memory copy bandwidth in bytes per second, counting reads and writes.
double copy_bandwidth(Device& device);

// Step time estimate that does not run a step.

/// Returns a text with the minimum and the typical step time, computed from GEMM rates that are measured on `device`.
std::string describe_step_time(const Config& config, int world_size, Device& device);

}  // namespace mcpp
