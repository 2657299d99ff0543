#include "megatron_cpp/setup/device_peaks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "base/philox.h"
#include "base/statistics.h"
#include "base/strings.h"
#include "checkpoint/directory/run_folder.h"
#include "nn/offload/host_memory.h"
#include "parallel/reduce_scalar.h"
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
  constexpr double kMaxSeconds = 2, kGrowth = 8;  // growth of the work if the side doubles
  constexpr int kQuietRounds = 3;                 // rounds without improvement that end the measurement
  constexpr double kFaster = 1.01;
  const double start = steady_seconds();
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
    const double size_start = steady_seconds();
    time_square(n, /*warmup=*/2);
    if (kGrowth * (steady_seconds() - size_start) > kMaxSeconds) break;
  }
  for (int quiet_rounds = 0; quiet_rounds < kQuietRounds && steady_seconds() - start < kMaxSeconds;)
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

PeakFile::PeakFile(const std::string& save_folder, std::string device) : device_(std::move(device)) {
  if (!save_folder.empty()) path_ = Path(save_folder) / "measured_peak.json";
}

double PeakFile::read() const {
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return 0;
  std::string text;
  try {
    text = read_text_file(path_);
  } catch (const Error&) {
    return 0;  // to be measured again
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("device", nlohmann::json()) != device_) return 0;
  const nlohmann::json tflops = json.value("tflops", nlohmann::json());
  return tflops.is_number() && std::isfinite(tflops.get<double>()) && tflops > 0 ? tflops.get<double>() : 0;
}

void PeakFile::write(double tflops, const Log& log) const {
  if (path_.empty()) return;
  try {
    mcpp::create_directories(path_.parent_path());
    write_file_atomic(path_, nlohmann::ordered_json{{"device", device_}, {"tflops", tflops}}.dump() + "\n");
  } catch (const Error& error) {
    log.warn(str("the measured peak cannot be stored: ", error.what()));
  }
}

PeakFile peak_file(const Config& config, const Session& session) {
  Device& device = *session.device;
  return {run_folder(config.checkpoint.save),
          str(device_name(device), ", ", enum_name(config.training.precision), ", ", host_threads(device), " threads, ",
              session.node->size(), " ranks on its host")};
}

bool measures_peak(int node_rank, int cores, Device& device) {
  if (device.type() != DeviceType::Cpu || cores == 0) return true;
  return node_rank < std::max(1, cores / host_threads(device));
}

DevicePeak find_device_peak(const Config& config, Session& session, const Log& log) {
  Device& device = *session.device;
  if (config.logging.peak_tflops > 0) return {config.logging.peak_tflops, DevicePeak::Source::Config};
  const DType dtype = dtype_of(config.training.precision);
  Communicator& world = session.parallel.world;
  CpuDevice host;  // the world communicator transfers tensors in host memory
  // Ranks may have different devices. All ranks take part in the reductions, unless all devices are rated.
  const double rated = rated_flops(device_name(device), dtype, config.device.allow_tf32);
  const double is_unrated = rated > 0 ? 0 : 1;
  if (reduce_scalar(is_unrated, ReduceOp::Max, world, host) == 0) return {rated / 1e12, DevicePeak::Source::DataSheet};
  const bool is_first = world.rank() == 0;
  const PeakFile file = peak_file(config, session);
  const double stored = reduce_scalar(is_first ? file.read() : 0, ReduceOp::Max, world, host);
  double tflops = stored;
  if (stored == 0) {
    const bool measures = measures_peak(session.node->rank(), session.cores, device);
    const double measured = measures ? peak_flops(dtype, device) / 1e12 : 0;
    tflops = reduce_scalar(measured, ReduceOp::Max, world, host);
    if (is_first) file.write(tflops, log);
  }
  device.trim();
  device.reset_peak();
  return {tflops, DevicePeak::Source::Measured};
}

std::string peak_warning(const DevicePeak& peak, double reached) {
  if (reached <= peak.tflops) return "";
  const std::string above = str("steps reach ", fixed(reached, 3), " TFLOP/s on a device, above ");
  switch (peak.source) {
    case DevicePeak::Source::Config:
      return str(above, "logging.peak_tflops = ", fixed(peak.tflops, 3), ": MFU is above 100 %; set it higher");
    case DevicePeak::Source::DataSheet:
      return str(above, "the ", fixed(peak.tflops, 3),
                 " of its data sheet: MFU is above 100 %; set logging.peak_tflops");
    default:
      return str(above, "the measured peak of ", fixed(peak.tflops, 3),
                 ", probably because of other load: from now on MFU is relative to the faster steps, and earlier MFU "
                 "values were too high; set logging.peak_tflops to fix the peak");
  }
}

}  // namespace mcpp
