#include "plan/hardware/hardware.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <span>

#include "base/strings.h"
#include "model/config/config.h"

namespace mcpp {
namespace {

/// Interpolation point between two values of a list, on a logarithmic scale.
struct Interpolation {
  std::size_t below = 0, above = 0;
  double share = 0;  ///< weight of `above`
};

Interpolation interpolation_point(const std::vector<i64>& values, i64 value) {
  const auto above = std::ranges::upper_bound(values, value);
  if (above == values.begin()) return {};
  const auto index = static_cast<std::size_t>(above - values.begin());
  if (above == values.end()) return {index - 1, index - 1, 0};
  const auto log = [](i64 x) { return std::log(static_cast<double>(x)); };
  return {index - 1, index, (log(value) - log(values[index - 1])) / (log(values[index]) - log(values[index - 1]))};
}

/// Interpolates in a table with one axis per interpolation point, the last one fastest. Averages times, not rates.
double rate_at(const std::vector<double>& table, std::span<const Interpolation> points,
               std::span<const std::size_t> sizes, std::size_t first = 0) {
  if (points.empty()) return table[first];
  const Interpolation& point = points.front();
  const auto slice_rate = [&](std::size_t index) {
    return rate_at(table, points.subspan(1), sizes.subspan(1), (first + index) * (sizes.size() > 1 ? sizes[1] : 1));
  };
  const double below = slice_rate(point.below);
  return point.share == 0 ? below : 1 / ((1 - point.share) / below + point.share / slice_rate(point.above));
}

}  // namespace

GemmType gemm_type_of(GemmRecipe recipe) {
  constexpr std::array kTypes{GemmType::Bf16,      GemmType::Fp8,   GemmType::Fp8,
                              GemmType::Blockwise, GemmType::Mxfp8, GemmType::Nvfp4};
  return kTypes.at(static_cast<std::size_t>(recipe));
}

double operand_bytes(GemmType type) {
  switch (type) {
    case GemmType::Bf16:
      return 2;
    case GemmType::Fp8:
      return 1;
    case GemmType::Blockwise:
      return 1 + 4.0 / 128;  // a scale in fp32 per 128 elements
    case GemmType::Mxfp8:
      return 1 + 1.0 / 32;
    case GemmType::Nvfp4:
      return 0.5 + 1.0 / 16;
    case GemmType::Fp32:
      return 4;
  }
  return 0;
}

void MeasuredRates::add_conflicts(const std::string& section, std::vector<std::string>& errors) const {
  if (!has()) return;
  const auto increases = [&](const char* key, const std::vector<i64>& values) {
    if (std::ranges::adjacent_find(values, std::greater_equal()) != values.end())
      errors.push_back(str(section, ".", key, ": must increase"));
  };
  increases("sizes", sizes);
  increases("attention_lengths", attention_lengths);
  const auto has_elements = [&](const char* key, const std::vector<double>& values, std::size_t count) {
    if (values.size() != count)
      errors.push_back(str(section, ".", key, ": has ", values.size(), " elements, must have ", count));
  };
  const std::size_t gemms = sizes.size() * sizes.size() * sizes.size();
  has_elements("forward", forward, gemms);
  has_elements("input_gradient", input_gradient, gemms);
  has_elements("weight_gradient", weight_gradient, gemms);
  const std::size_t attentions = attention_lengths.size() * attention_widths.size();
  if (attentions == 0) errors.push_back(str(section, ".attention_lengths, attention_widths: must not be empty"));
  has_elements("attention_forward", attention_forward, attentions);
  has_elements("attention_backward", attention_backward, attentions);
  for (const auto& [key, values] : {std::pair("norm_forward", &norm_forward),
                                    {"norm_backward", &norm_backward},
                                    {"residual_forward", &residual_forward},
                                    {"residual_backward", &residual_backward}})
    has_elements(key, *values, 2);
  constexpr std::size_t kActivations = EnumNames<ActivationFunction>::value.size();
  has_elements("activation_forward", activation_forward, kActivations);
  has_elements("activation_backward", activation_backward, kActivations);
}

double MeasuredRates::gemm_seconds(const MatmulShape& shape, GemmPass pass) const {
  const std::vector<double>& table = pass == GemmPass::Forward         ? forward
                                     : pass == GemmPass::InputGradient ? input_gradient
                                                                       : weight_gradient;
  const std::array points{interpolation_point(sizes, shape.m), interpolation_point(sizes, shape.n),
                          interpolation_point(sizes, shape.k)};
  const std::array counts{sizes.size(), sizes.size(), sizes.size()};
  return shape.flops() / (1e9 * rate_at(table, points, counts));
}

double MeasuredRates::attention_rate(i64 length, i64 width, bool is_backward) const {
  const std::array points{interpolation_point(attention_lengths, length), interpolation_point(attention_widths, width)};
  const std::array counts{attention_lengths.size(), attention_widths.size()};
  return 1e9 * rate_at(is_backward ? attention_backward : attention_forward, points, counts);
}

namespace {

void check_attained(const DeviceRates& d, std::vector<std::string>& errors) {
  const auto check = [&](const char* key, double attained, double limit, const char* limit_name) {
    if (attained > limit) errors.push_back(str("device.", key, ": ", attained, " is above ", limit_name, " = ", limit));
  };
  check("bf16_attained", d.bf16_attained, d.bf16_peak, "bf16_peak");
  check("fp8_attained", d.fp8_attained, d.fp8_peak, "fp8_peak");
  check("blockwise_attained", d.blockwise_attained, d.blockwise_peak, "blockwise_peak");
  check("mxfp8_attained", d.mxfp8_attained, d.mxfp8_peak, "mxfp8_peak");
  check("nvfp4_attained", d.nvfp4_attained, d.nvfp4_peak, "nvfp4_peak");
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
    errors.push_back("links.tier: is empty; list at least one tier, such as \"node\" for all devices of a host");
  check("ranks", l.ranks.size());
  check("bandwidth", l.bandwidth.size());
  check("attained", l.attained.size());
  check("latency", l.latency.size());
  for (std::size_t i = 1; i < l.ranks.size(); ++i)
    if (l.ranks[i] <= l.ranks[i - 1] || l.ranks[i] % l.ranks[i - 1] != 0)
      errors.push_back(
          str("links.ranks: ", l.ranks[i], " is not a multiple of the ", l.ranks[i - 1], " of the previous tier"));
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

const MeasuredRates* Hardware::measured(GemmType type) const {
  if (type == GemmType::Bf16) return measured_bf16.has() ? &measured_bf16 : nullptr;
  return type == GemmType::Fp32 && measured_fp32.has() ? &measured_fp32 : nullptr;
}

double Hardware::gemm_flops(GemmType type) const {
  if (has_attained_rate(type) || type == GemmType::Bf16) return 1e12 * *rates_of(type).attained;
  const GemmType similar = type == GemmType::Fp8 || !has_gemms(GemmType::Fp8) ? GemmType::Bf16 : GemmType::Fp8;
  return peak_flops(type) * gemm_flops(similar) / peak_flops(similar);
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
  const auto node_ranks = static_cast<double>(std::min(ranks, links.ranks.front()));
  if (host.cores == 0) return node_ranks;
  return std::min(node_ranks, std::max(1.0, static_cast<double>(host.cores) / static_cast<double>(device.cores)));
}

double Hardware::communication_slowdown() const {
  return static_cast<double>(device.communication_cores) / static_cast<double>(device.cores);
}

}  // namespace mcpp
