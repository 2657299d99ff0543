#include "megatron_cpp/bench/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/io/scratch_file.h"
#include "base/machine.h"
#include "base/statistics.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/bench/calibrate_disk.h"
#include "megatron_cpp/bench/calibrate_kernels.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

/// Returns the best rate of the large products, in FLOP/s.
double best_rate(const MeasuredRates& rates) {
  return 1e9 * *std::ranges::max_element(rates.forward);
}

double least_memory_limit() {
  double least = 1e18;
  for (const MemoryLimit& limit : memory_limits()) least = std::min(least, static_cast<double>(limit.bytes));
  return least;
}

double copy_rate(CalibrationClock& clock) {
  const i64 count = 32 << 20;  // far larger than any cache, including shared ones
  const Tensor from = random_tensor({count}, DType::F32, clock.device(), 1);
  Tensor to = Tensor::like(from);
  return 2.0 * static_cast<double>(from.bytes()) / clock.seconds([&] { ops::copy(from, to); });
}

DeviceRates device_rates(CalibrationClock& clock, const MeasuredRates& bf16, const MeasuredRates& fp32, int ranks) {
  const Device& device = clock.device();
  DeviceRates rates;
  rates.name = device_name(device);
  rates.cores = static_cast<const CpuDevice&>(device).threads();
  rates.bf16_peak = rates.bf16_attained = best_rate(bf16) / 1e12;
  rates.fp32_peak = rates.fp32_attained = best_rate(fp32) / 1e12;
  rates.attention_attained = std::min(rates.bf16_peak, *std::ranges::max_element(bf16.attention_forward) / 1e3);
  rates.memory = least_memory_limit() / 1e9 / ranks;
  rates.memory_bandwidth = rates.memory_attained = copy_rate(clock) / 1e9;
  rates.communication_cores = rates.cores;  // only the cores move data
  Tensor small = Tensor::zeros({64}, DType::F32, clock.device());
  rates.kernel_gap = 1e6 * clock.seconds([&] { ops::scale(small, 1); });
  rates.speed_spread = std::min(0.5, clock.rank_spread());
  return rates;
}

/// Returns pointers to all numbers of a section.
template <class Section>
std::vector<double*> pointers_to_numbers(Section& section) {
  std::vector<double*> all;
  const auto visit = [&]<class T>(const char*, T& value, const char*, const Constraint& = {}) {
    if constexpr (std::is_same_v<T, double>) all.push_back(&value);
    if constexpr (std::is_same_v<T, std::vector<double>>)
      for (double& each : value) all.push_back(&each);
  };
  Section::fields(section, visit);
  return all;
}

/// Rounds to four digits, the most that a measurement has.
double rounded(double value) {
  if (value == 0) return 0;
  const double digits = 3 - std::floor(std::log10(std::abs(value))), scale = std::pow(10, std::abs(digits));
  return digits > 0 ? std::round(value * scale) / scale : std::round(value / scale) * scale;
}

void round_all(Hardware& hardware) {
  Hardware::sections(hardware, [](const char*, auto& section) {
    for (double* number : pointers_to_numbers(section)) *number = rounded(*number);
  });
}

/// Returns the elementwise median of several rounds.
MeasuredRates typical_kernels(CalibrationClock& clock, DType dtype, const CalibrationSizes& sizes) {
  std::vector<MeasuredRates> rounds;
  for (int round = 0; round < sizes.rounds; ++round) rounds.push_back(measure_kernels(clock, dtype, sizes));
  MeasuredRates typical = rounds.front();
  const std::vector<double*> to = pointers_to_numbers(typical);
  std::vector<std::vector<double>> values(to.size());
  for (MeasuredRates& round : rounds)
    for (std::size_t i = 0; double* value : pointers_to_numbers(round)) values[i++].push_back(*value);
  for (std::size_t i = 0; i < to.size(); ++i) *to[i] = median(std::move(values[i]));
  return typical;
}

/// Measures latency with tiny messages and bandwidth with sums of large vectors.
LinkTiers links_of(CalibrationClock& clock, double copy_rate, i64 bytes) {
  Communicator& ranks = clock.ranks();
  LinkTiers links{
      .tier = {"machine"}, .ranks = {ranks.size()}, .bandwidth = {copy_rate}, .attained = {1}, .latency = {0}};
  if (ranks.size() == 1) return links;
  const auto sum = [&](i64 count) {
    Tensor vector = random_tensor({count}, DType::F32, clock.device(), 1);
    return clock.collective_seconds([&] { ranks.all_reduce(vector, ReduceOp::Sum).wait(); });
  };
  const double n = ranks.size(), short_one = sum(ranks.size() * 16),
               long_one = sum(bytes / 4 / ranks.size() * ranks.size());
  links.bandwidth = {2 * (n - 1) / n * static_cast<double>(bytes) / std::max(long_one - short_one, 1e-9) / 1e9};
  links.latency = {1e6 * short_one / (2 * n)};
  return links;
}

}  // namespace

Hardware calibrate(Device& device, Communicator& ranks, int cores, const CalibrationSizes& sizes) {
  MCPP_CHECK(device.type() == DeviceType::Cpu, "only processors are calibrated");
  constexpr const char* kFolder = "--offload_folder";
  if (!sizes.disk.empty())
    ScratchFile(sizes.disk, aligned_bytes(sizes.disk_bytes), kFolder);  // fail before measuring for minutes
  const int num_concurrent = std::clamp(cores / static_cast<const CpuDevice&>(device).threads(), 1, ranks.size());
  const std::unique_ptr<Communicator> concurrent_group =
      ranks.split(ranks.rank() < num_concurrent ? 0 : 1, ranks.rank());
  Hardware hardware;
  if (ranks.rank() < num_concurrent) {
    CalibrationClock clock(device, *concurrent_group, sizes.seconds_each);
    hardware.measured_bf16 = typical_kernels(clock, DType::BF16, sizes);
    hardware.measured_fp32 = typical_kernels(clock, DType::F32, sizes);
    hardware.device = device_rates(clock, hardware.measured_bf16, hardware.measured_fp32, ranks.size());
  }
  CalibrationClock clock(device, ranks, sizes.seconds_each);
  hardware.links = links_of(clock, hardware.device.memory_attained, sizes.message_bytes);
  hardware.host.cores = cores;
  if (!sizes.disk.empty())
    hardware.host.nvme_bandwidth = disk_bandwidth(clock, sizes.disk, sizes.disk_bytes, kFolder) / 1e9;
  round_all(hardware);
  return ranks.rank() == 0 ? hardware : Hardware();
}

}  // namespace mcpp
