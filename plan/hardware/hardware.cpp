#include "plan/hardware/hardware.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/strings.h"

namespace mcpp {
namespace {

void check_attained(const DeviceRates& d, std::vector<std::string>& errors) {
  const auto check = [&](const char* key, double attained, double limit, const char* of) {
    if (attained > limit) errors.push_back(str("device.", key, ": ", attained, " is above ", of, " = ", limit));
  };
  check("bf16_attained", d.bf16_attained, d.bf16_peak, "bf16_peak");
  check("fp8_attained", d.fp8_attained, d.fp8_peak, "fp8_peak");
  check("fp32_attained", d.fp32_attained, d.fp32_peak, "fp32_peak");
  check("attention_attained", d.attention_attained, d.bf16_peak, "bf16_peak");
  check("memory_attained", d.memory_attained, d.memory_bandwidth, "memory_bandwidth");
  if (d.communication_cores > d.cores)
    errors.push_back(str("device.communication_cores: ", d.communication_cores, " is above cores = ", d.cores));
}

void check_tiers(const LinkTiers& l, std::vector<std::string>& errors) {
  const std::size_t tiers = l.tier.size();
  const auto check = [&](const char* key, std::size_t size) {
    if (size != tiers)
      errors.push_back(str("links.", key, ": has ", size, " elements, but links.tier has ", tiers, "; one for each"));
  };
  if (tiers == 0)
    errors.push_back("links.tier: is empty; name one at least, all devices of one machine as \"machine\"");
  check("ranks", l.ranks.size());
  check("bandwidth", l.bandwidth.size());
  check("attained", l.attained.size());
  check("latency", l.latency.size());
  for (std::size_t i = 1; i < l.ranks.size(); ++i)
    if (l.ranks[i] <= l.ranks[i - 1] || l.ranks[i] % l.ranks[i - 1] != 0)
      errors.push_back(
          str("links.ranks: ", l.ranks[i], " is no multiple of the ", l.ranks[i - 1], " of the tier before"));
}

}  // namespace

std::vector<std::string> Hardware::conflicts() const {
  std::vector<std::string> errors;
  check_attained(device, errors);
  check_tiers(links, errors);
  measured_bf16.add_conflicts("measured_bf16", errors);
  measured_fp32.add_conflicts("measured_fp32", errors);
  return errors;
}

const MeasuredRates* Hardware::measured(ProductType type) const {
  const MeasuredRates& rates = type == ProductType::Fp32 ? measured_fp32 : measured_bf16;
  return type != ProductType::Fp8 && rates.has() ? &rates : nullptr;
}

double Hardware::product_flops(ProductType type) const {
  return 1e12 * (type == ProductType::Bf16  ? device.bf16_attained
                 : type == ProductType::Fp8 ? device.fp8_attained
                                            : device.fp32_attained);
}

double Hardware::peak_flops(ProductType type) const {
  return 1e12 * (type == ProductType::Bf16  ? device.bf16_peak
                 : type == ProductType::Fp8 ? device.fp8_peak
                                            : device.fp32_peak);
}

double Hardware::slowest_device_factor(i64 ranks) const {
  if (ranks < 2) return 1;
  // Mean of the maximum of n normal variables, by Gumbel's limit.
  const double n = static_cast<double>(ranks), root = std::sqrt(2 * std::log(n));
  const double largest =
      root - (std::log(std::log(n)) + std::log(4 * std::numbers::pi)) / (2 * root) + std::numbers::egamma / root;
  return 1 + device.speed_spread * std::max(0.0, largest);
}

double Hardware::concurrent_ranks(i64 ranks) const {
  const auto here = static_cast<double>(std::min(ranks, links.ranks.front()));
  if (host.cores == 0) return here;
  return std::min(here, std::max(1.0, static_cast<double>(host.cores) / static_cast<double>(device.cores)));
}

double Hardware::communication_slowdown() const {
  return static_cast<double>(device.communication_cores) / static_cast<double>(device.cores);
}

}  // namespace mcpp
