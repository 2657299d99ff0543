#include "model/gradient_messages.h"

#include <algorithm>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/pack.h"

namespace mcpp {
namespace {

bool has_several_buckets(const RankParameters& parameters) {
  return std::ranges::any_of(parameters.dense, [](const ChunkParameters& chunk) { return chunk.buckets.size() > 1; });
}

/// Returns the first bucket without units below `unit`: backward reaches it before buckets of lower units.
std::size_t bucket_from(const ChunkParameters& chunk, int unit) {
  return static_cast<std::size_t>(std::ranges::lower_bound(chunk.units, unit) - chunk.units.begin());
}

}  // namespace

double GradientMessages::bytes(i64 elements) const {
  const DType type = message_type(share_.grad_reduce_format);
  return static_cast<double>(padded_alloc_size(message_elements(type, elements) * size_of(type)));
}

/// Includes the intra-node sums, which are computed from received messages and packed again.
double GradientMessages::packing_bytes(i64 elements) const {
  const double message = 2 * bytes(elements);
  if (!has_nodes()) return message;
  const i64 of_node = elements / share_.node_ranks;
  const auto sum = static_cast<double>(padded_alloc_size(of_node * size_of(accumulate_dtype(setup_.dtype))));
  return std::max({message, message / 2 + sum, sum + 2 * bytes(of_node)});
}

double GradientMessages::in_flight_bytes(i64 elements) const {
  return 2 * bytes(has_nodes() ? elements / share_.node_ranks : elements);
}

double GradientMessages::max_bytes() const {
  if (share_.grad_reduce_format == GradReduceFormat::Full) return 0;
  const i64 largest = largest_buckets(parameters_);
  if (share_.zero_stage >= 2)
    return packing_bytes(largest) +
           static_cast<double>(padded_alloc_size(largest / share_.shards * size_of(accumulate_dtype(setup_.dtype))));
  return packing_bytes(largest) + (has_several_buckets(parameters_) ? in_flight_bytes(largest) : 0);
}

double GradientMessages::peak_bytes_with(const std::vector<UsedUnits>& used,
                                         const std::vector<UnitActivations>& activations) const {
  double max_bytes = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    double during = static_cast<double>(activations[i].below + activations[i].live);
    auto after = static_cast<double>(activations[i].below);
    for (const auto* chunks : {&parameters_.dense, &parameters_.experts}) {
      if (chunks->empty()) continue;
      const ChunkParameters& chunk = chunks->front();
      const auto sent = [&](std::size_t b) { return b < chunk.buckets.size() ? in_flight_bytes(chunk.buckets[b]) : 0; };
      const std::size_t begin = bucket_from(chunk, used[i].units.first), end = bucket_from(chunk, used[i].units.end);
      during += sent(end) + sent(end + 1);
      after += begin < end ? packing_bytes(chunk.buckets[begin]) + sent(begin + 1) : sent(end) + sent(end + 1);
    }
    max_bytes = std::max({max_bytes, during, after});
  }
  return max_bytes;
}

}  // namespace mcpp
