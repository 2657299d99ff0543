#include "megatron_cpp/bench/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/machine.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/bench/calibrate_kernels.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

/// The best of the large products, FLOP/s.
double best_rate(const MeasuredRates& rates) {
  return 1e9 * *std::ranges::max_element(rates.forward);
}

double least_memory_limit() {
  double least = 1e18;
  for (const MemoryLimit& limit : memory_limits()) least = std::min(least, static_cast<double>(limit.bytes));
  return least;
}

double copy_rate(CalibrationClock& clock) {
  const i64 count = 8 << 20;
  const Tensor from = random_tensor({count}, DType::F32, clock.device(), 1);
  Tensor to = Tensor::like(from);
  return 2.0 * static_cast<double>(from.bytes()) / clock.seconds([&] { ops::copy(from, to); });
}

DeviceRates device_rates(CalibrationClock& clock, const MeasuredRates& bf16, const MeasuredRates& fp32) {
  const Device& device = clock.device();
  DeviceRates rates;
  rates.name = device_name(device);
  rates.cores = static_cast<const CpuDevice&>(device).threads();
  rates.bf16_peak = rates.bf16_attained = best_rate(bf16) / 1e12;
  rates.fp32_peak = rates.fp32_attained = best_rate(fp32) / 1e12;
  rates.attention_attained = std::min(rates.bf16_peak, *std::ranges::max_element(bf16.attention_forward) / 1e3);
  rates.memory = least_memory_limit() / 1e9 / clock.ranks().size();
  rates.memory_bandwidth = rates.memory_attained = copy_rate(clock) / 1e9;
  rates.communication_cores = rates.cores;  // nothing else moves data
  Tensor few = Tensor::zeros({64}, DType::F32, clock.device());
  rates.kernel_gap = 1e6 * clock.seconds([&] { ops::scale(few, 1); });
  return rates;
}

/// Latency from messages that hold nothing to speak of, bandwidth from sums of large vectors.
LinkTiers links_of(CalibrationClock& clock, double copy_rate, i64 bytes) {
  Communicator& ranks = clock.ranks();
  LinkTiers links{
      .tier = {"machine"}, .ranks = {ranks.size()}, .bandwidth = {copy_rate}, .attained = {1}, .latency = {0}};
  if (ranks.size() == 1) return links;
  const auto sum = [&](i64 count) {
    Tensor vector = random_tensor({count}, DType::F32, clock.device(), 1);
    return clock.together([&] { ranks.all_reduce(vector, ReduceOp::Sum).wait(); });
  };
  const double n = ranks.size(), short_one = sum(ranks.size() * 16),
               long_one = sum(bytes / 4 / ranks.size() * ranks.size());
  links.bandwidth = {2 * (n - 1) / n * static_cast<double>(bytes) / std::max(long_one - short_one, 1e-9) / 1e9};
  links.latency = {1e6 * short_one / (2 * n)};
  return links;
}

}  // namespace

Hardware calibrate(Device& device, Communicator& ranks, const CalibrationSizes& sizes) {
  MCPP_CHECK(device.type() == DeviceType::Cpu, "only processors are calibrated");
  CalibrationClock clock(device, ranks, sizes.seconds_each);
  Hardware hardware;
  hardware.measured_bf16 = measure_kernels(clock, DType::BF16, sizes);
  hardware.measured_fp32 = measure_kernels(clock, DType::F32, sizes);
  hardware.device = device_rates(clock, hardware.measured_bf16, hardware.measured_fp32);
  hardware.links = links_of(clock, hardware.device.memory_attained, sizes.message_bytes);
  return hardware;
}

}  // namespace mcpp
