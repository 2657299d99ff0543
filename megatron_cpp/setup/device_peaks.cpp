#include "megatron_cpp/setup/device_peaks.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/philox.h"
#include "base/statistics.h"
#include "base/strings.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

struct Rating {
  std::string_view name;          ///< substring of the driver's name
  double bf16, tf32, fp32, fp64;  ///< dense TFLOP/s, without sparsity
};

/// The first match is used, so variants precede the plain name. "H200" also matches the GH200.
constexpr std::array kRatings{
    Rating{"H200 NVL", 835, 417.5, 60, 60},   Rating{"H200", 989.4, 494.7, 66.9, 66.9},
    Rating{"H100 PCIe", 756, 378, 51, 51},    Rating{"H100 NVL", 835, 417.5, 60, 60},
    Rating{"H100", 989.4, 494.7, 66.9, 66.9}, Rating{"A100", 311.8, 155.9, 19.5, 19.5},
};

/// Returns the number of calls in one timed run of a function that takes `seconds`.
i64 calls_in_a_run(double seconds, const Device& device) {
  constexpr double kMinSeconds = 2e-3, kMaxCalls = 1000;
  if (device.type() == DeviceType::Cpu) return 1;
  return static_cast<i64>(std::clamp(kMinSeconds / seconds, 1.0, kMaxCalls));
}

/// Returns the seconds per call of each run.
std::vector<double> time_runs(const BenchTiming& timing, Device& device, const std::function<void()>& f) {
  double last = 0;
  for (int i = 0; i < timing.warmup; ++i) last = seconds_of(device, f);
  const i64 calls = timing.warmup > 0 ? calls_in_a_run(last, device) : 1;
  std::vector<double> times;
  for (int i = 0; i < timing.repeats; ++i) {
    const double seconds = seconds_of(device, [&] {
      for (i64 k = 0; k < calls; ++k) f();
    });
    times.push_back(seconds / static_cast<double>(calls));
  }
  return times;
}

}  // namespace

double rated_flops(std::string_view device_name, DType dtype, bool allow_tf32) {
  for (const Rating& rating : kRatings) {
    if (device_name.find(rating.name) == std::string_view::npos) continue;
    if (dtype == DType::F32) return 1e12 * (allow_tf32 ? rating.tf32 : rating.fp32);
    return 1e12 * (dtype == DType::F64 ? rating.fp64 : rating.bf16);
  }
  return 0;
}

Tensor random_tensor(const Shape& shape, DType dtype, Device& device, u64 key) {
  constexpr i64 kBlock = (i64{1} << 20) - 1;
  Tensor result = Tensor::empty(shape, dtype, device, MemoryClass::Workspace);
  const i64 count = result.numel(), block = std::min(count, kBlock);
  std::vector<float> values(static_cast<std::size_t>(block));
  for (i64 i = 0; i < block; ++i) {
    values[static_cast<std::size_t>(i)] =
        static_cast<float>(uniform_open(static_cast<u32>(philox_key(key, "bench", static_cast<u64>(i)))) - 0.5);
  }
  Tensor drawn = Tensor::empty({block}, DType::F32, device, MemoryClass::Workspace);
  write_values(values, drawn);
  for (i64 begin = 0; begin < count; begin += block) {
    Tensor part = result.flat(begin, std::min(block, count - begin));
    ops::copy(drawn.slice(0, part.numel()), part);
  }
  return result;
}

double median_seconds(const BenchTiming& timing, Device& device, const std::function<void()>& f) {
  return median(time_runs(timing, device, f));
}

std::vector<double> gemm_runs(const GemmCase& gemm, DType dtype, Device& device, const BenchTiming& timing) {
  const Tensor a = random_tensor(gemm.shape_of_a(), dtype, device, 1);
  const Tensor b = random_tensor(gemm.shape_of_b(), dtype, device, 2);
  Tensor out = Tensor::zeros({gemm.m, gemm.n}, gemm.output_type(dtype), device, MemoryClass::Workspace);
  return time_runs(timing, device, [&] { ops::matmul(a, b, out, gemm.options); });
}

double peak_flops(DType dtype, Device& device) {
  using Clock = std::chrono::steady_clock;
  constexpr double kMaxSeconds = 2, kGrowth = 8;  // growth of the work if the side doubles
  constexpr int kQuietRounds = 3;                 // rounds without improvement that end the measurement
  constexpr double kFaster = 1.01;
  const auto start = Clock::now();
  const auto seconds_since = [](Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  };
  double best = 0;
  i64 best_size = 0;
  const auto time_square = [&](i64 n, int warmup) {
    const GemmCase square{str("square ", n), n, n, n, {.transpose_b = true}, false, 1};
    const std::vector<double> seconds = gemm_runs(square, dtype, device, {.warmup = warmup, .repeats = 5});
    const double rate = square.flops() / std::ranges::min(seconds);
    const bool is_faster = rate > kFaster * best;
    if (rate > best) best_size = n;
    best = std::max(best, rate);
    return is_faster;
  };
  const bool is_gpu = device.type() == DeviceType::Cuda;
  for (const i64 n : is_gpu ? std::vector<i64>{4096, 8192} : std::vector<i64>{512, 1024, 2048}) {
    const auto size_start = Clock::now();
    time_square(n, /*warmup=*/2);
    if (kGrowth * seconds_since(size_start) > kMaxSeconds) break;
  }
  for (int quiet_rounds = 0; quiet_rounds < kQuietRounds && seconds_since(start) < kMaxSeconds;)
    quiet_rounds = time_square(best_size, /*warmup=*/1) ? 0 : quiet_rounds + 1;
  return best;
}

double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device) {
  const double rated = rated_flops(device_name(device), dtype, allow_tf32);
  return rated > 0 ? rated : peak_flops(dtype, device);
}

double mfu_peak_flops(DType dtype, bool allow_tf32, Device& device, double reached) {
  const double rated = rated_flops(device_name(device), dtype, allow_tf32);
  if (rated > 0) return rated;
  const double measured = peak_flops(dtype, device);
  return measured >= reached ? measured : std::max(reached, peak_flops(dtype, device));
}

}  // namespace mcpp
