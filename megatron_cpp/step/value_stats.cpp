#include "megatron_cpp/step/value_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "comm/object_collectives.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

/// Returns the upper limit of the quarter octave that contains x.
float bucket_of(float x) {
  constexpr int kShift = 21;  // keeps two bits of the fraction
  const u32 bits = std::bit_cast<u32>(x);
  const u32 sign = bits & 0x8000'0000, size = bits & 0x7FFF'FFFF;
  if (size == 0 || !std::isfinite(x)) return std::isfinite(x) ? 0.0F : x;
  return std::bit_cast<float>(sign | (((size >> kShift) + (sign == 0 ? 1 : 0)) << kShift));
}

template <class T>
void add_values(const Tensor& values, bool with_buckets, ValueStats& stats) {
  for (const T value : HostValues<T>(values)) {
    const double x = static_cast<double>(static_cast<float>(value));
    stats.zeros += x == 0 ? 1 : 0;
    stats.sum += x;
    stats.sum_of_squares += x * x;
    stats.max_abs = std::max(stats.max_abs, std::abs(x));
    if (with_buckets && !std::isnan(x)) stats.buckets[bucket_of(static_cast<float>(x))] += 1;
  }
  stats.count += static_cast<double>(values.numel());
}

Json encoded(const ValueStats& stats) {
  std::vector<double> limits, counts;
  for (const auto& [limit, count] : stats.buckets) {
    limits.push_back(limit);
    counts.push_back(count);
  }
  return {stats.count, stats.zeros, stats.sum, stats.sum_of_squares, stats.max_abs, limits, counts};
}

ValueStats decoded(const Json& list) {
  ValueStats stats{.count = list[0], .zeros = list[1], .sum = list[2], .sum_of_squares = list[3], .max_abs = list[4]};
  for (std::size_t i = 0; i < list[5].size(); ++i) stats.buckets[list[5][i].get<float>()] = list[6][i];
  return stats;
}

std::string layer_of(const std::string& parameter) {
  constexpr std::string_view kLayers = "decoder.layers.";
  const std::size_t begin = parameter.starts_with(kLayers) ? kLayers.size() : 0;
  const std::size_t end = parameter.find('.', begin);
  if (begin > 0 || !parameter.starts_with("decoder.")) return parameter.substr(0, end);
  return parameter.substr(0, parameter.find('.', end + 1));
}

}  // namespace

void ValueStats::add(const Tensor& values, bool with_buckets) {
  on_float(values.dtype(), [&]<class T>() { add_values<T>(values, with_buckets, *this); });
}

ValueStats& ValueStats::operator+=(const ValueStats& other) {
  count += other.count;
  zeros += other.zeros;
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
  max_abs = std::max(max_abs, other.max_abs);
  for (const auto& [limit, numbers] : other.buckets) buckets[limit] += numbers;
  return *this;
}

double ValueStats::norm() const {
  return std::sqrt(sum_of_squares);
}

StatsByName sum_over_ranks(const StatsByName& local, Communicator& world) {
  Json object = Json::object();
  for (const auto& [name, stats] : local) object[name] = encoded(stats);
  const std::vector<u8> bytes = Json::to_cbor(object);  // CBOR supports non-finite numbers
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  StatsByName all;
  for (const std::string& gathered : all_gather_strings(text, world)) {
    const Json of_rank = Json::from_cbor(gathered);
    for (const auto& [name, stats] : of_rank.items()) all[name] += decoded(stats);
  }
  return all;
}

ValueStats total_stats(const StatsByName& stats) {
  ValueStats total;
  for (const auto& [name, one] : stats) total += one;
  return total;
}

StatsByName group_by_layer(const StatsByName& by_parameter) {
  StatsByName layers;
  for (const auto& [name, stats] : by_parameter) layers[layer_of(name)] += stats;
  return layers;
}

}  // namespace mcpp
