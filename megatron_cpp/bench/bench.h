// Benchmarks on random data: matrix products, single operations and whole training steps. Reports medians of several
// runs after a warm-up.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "megatron_cpp/step/model_stage.h"
#include "model/config/config.h"
#include "tensor/ops/ops.h"

namespace mcpp {

struct BenchTiming {
  int warmup = 1;
  int repeats = 5;
};

/// Returns the median; for an even count, the upper one.
double median(std::vector<double> values);
/// Returns the median device seconds of one call of f. On a GPU each run consists of enough back-to-back calls to make
/// clock resolution and launch overhead negligible.
double median_seconds(const BenchTiming& timing, Device& device, const std::function<void()>& f);

/// Matrix product of a training step: op(a) [m, k] times op(b) [k, n].
struct GemmCase {
  std::string name;  ///< such as "fc1 wgrad"
  i64 m = 0, n = 0, k = 0;
  ops::MatmulOptions options;
  bool is_output_fp32 = false;  ///< the output is an fp32 main gradient
  i64 count = 1;                ///< occurrences in one forward and backward pass of the model

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

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

/// Returns uniform values in (-0.5, 0.5) without zeros, on which processors are faster. Large tensors repeat a block of
/// odd length, so that no two rows of a matrix are equal.
Tensor random_tensor(const Shape& shape, DType dtype, Device& device, u64 key);
/// Returns the shard of the context's rank of a microbatch of random tokens.
MicroBatch random_batch(const ModelContext& context, i64 micro_batch_size);

/// Measures the peak FLOP/s of large square products: the best of several rounds, as other load only slows them down.
/// Ends when rounds no longer improve, after a few seconds at most; if many ranks share a core, uses only smaller
/// products.
double peak_flops(DType dtype, Device& device);
/// Returns the reference for MFU in FLOP/s: the data sheet's rate of a known GPU (device_peaks.h), otherwise
/// peak_flops().
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device);
/// Returns mfu_peak_flops() for a program that reached `reached` FLOP/s. A lower measured peak was disturbed by other
/// load: it is measured once more, and the result is at least `reached`.
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device, double reached);
/// Measures memory copy bandwidth in bytes per second, counting reads and writes.
double copy_bandwidth(Device& device);

}  // namespace mcpp
