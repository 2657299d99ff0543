// Timing on random numbers: matrix products, single ops, whole training steps. Medians of several runs after a warm-up.
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

/// The middle one, of an even number the upper.
double median(std::vector<double> values);
/// Median seconds that one call of f takes the device. On a GPU each run is of so many calls, one behind the other,
/// that neither the clock's resolution nor the host's time to start them counts.
double median_seconds(const BenchTiming& timing, Device& device, const std::function<void()>& f);

/// A matrix product of a training step: op(a) [m, k] times op(b) [k, n].
struct GemmCase {
  std::string name;  ///< "fc1 wgrad"
  i64 m = 0, n = 0, k = 0;
  ops::MatmulOptions options;
  bool output_is_wide = false;  ///< an fp32 main gradient
  i64 count = 1;                ///< in one forward and backward pass of the model

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

/// Every product of one forward and backward pass over `tokens` tokens: forward, dgrad and wgrad of each linear layer.
std::vector<GemmCase> step_gemms(const ModelConfig& config, i64 tokens);

/// One line of a table and one JSON object.
struct BenchRow {
  std::string name;
  double seconds = 0;       ///< of calls one after another
  double cold_seconds = 0;  ///< of a product whose operands are as cold as in a step; 0 of all else
  double flops = 0;         ///< 0 where it does not count
  double bytes = 0;         ///< moved at least; 0 where it does not count
  i64 count = 1;
};

std::vector<BenchRow> bench_gemms(const std::vector<GemmCase>& cases, DType dtype, Device& device,
                                  const BenchTiming& timing);
/// Norms, activations, cross entropy, AdamW ... at the sizes of one pass over [s, b] tokens of the model.
std::vector<BenchRow> bench_ops(const ModelConfig& config, i64 batch, DType dtype, Device& device,
                                const BenchTiming& timing);

/// Numbers between -0.5 and 0.5, never zeros: processors are faster on zeros. Large tensors repeat a block of them,
/// whose odd length puts no two rows of a matrix on the same numbers.
Tensor random_tensor(const Shape& shape, DType dtype, Device& device, u64 key);
/// What the context's rank has of a microbatch of random tokens.
MicroBatch random_batch(const ModelContext& context, i64 micro_batch_size);

/// Returns the best rate of large square products over several rounds, because other load only slows them down. Goes on
/// until no round is faster any more, for some seconds at most; where many ranks share a core only smaller products
/// are timed.
double peak_flops(DType dtype, Device& device);
/// What MFU is a share of, in FLOP/s: the data sheet's rate of a GPU that is known (device_peaks.h), else peak_flops().
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device);
/// Returns mfu_peak_flops() for a program that reached `reached` FLOP/s. A measured peak below that was disturbed by
/// other load; it is measured once more, and is at least `reached`.
double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device, double reached);
/// Bytes per second of copying memory, read and write counted.
double copy_bandwidth(Device& device);

}  // namespace mcpp
