#include "model/unsharded_units.h"

#include <algorithm>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/pack.h"

namespace mcpp {
namespace {

/// Units of the embedding layer: word embeddings and positions.
constexpr UnitRange kEmbeddingUnits{0, 2};

/// Buckets [first, end) of a range of units.
struct BucketRange {
  std::size_t first = 0, end = 0;
  std::size_t count() const { return end - first; }
};
BucketRange buckets_of(const ChunkParameters& chunk, UnitRange units) {
  const auto at = [&](int unit) {
    return static_cast<std::size_t>(std::ranges::lower_bound(chunk.units, unit) - chunk.units.begin());
  };
  return {at(units.first), at(units.end)};
}

}  // namespace

UnshardedUnits::UnshardedUnits(const ChunkParameters& dense, const ChunkParameters* experts,
                               const RankMemorySpec& share, DType dtype, bool keeps_embedding)
    : grids_{&dense},
      param_width_(share.layout.zero_stage >= 3 ? size_of(dtype) : 0),
      grad_width_(share.layout.zero_stage >= 2 ? size_of(accumulate_dtype(dtype)) : 0),
      overlaps_gather_(share.layout.overlap_param_gather),
      overlaps_reduce_(share.layout.overlap_grad_reduce),
      keeps_embedding_(keeps_embedding),
      has_several_microbatches_(share.schedule.microbatches > 1),
      format_(share.layout.zero_stage >= 3 ? share.layout.formats.weight_encoding() : WeightEncoding::Full) {
  if (experts) grids_.push_back(experts);
}

bool UnshardedUnits::is_kept(const ChunkParameters& chunk, std::size_t bucket) const {
  return keeps_embedding_ && &chunk == grids_.front() && bucket == 0;
}

double UnshardedUnits::bytes(const ChunkParameters& chunk, std::size_t bucket, i64 width) const {
  return static_cast<double>(padded_alloc_size(chunk.buckets[bucket] * width));
}

double UnshardedUnits::message_bytes(const ChunkParameters& chunk, std::size_t bucket) const {
  if (format_ != WeightEncoding::Int8) return bytes(chunk, bucket, param_width_);  // an upper bound for fp8
  return static_cast<double>(padded_alloc_size(packed_words(chunk.buckets[bucket]) * size_of(DType::I32)));
}

double UnshardedUnits::unpack_bytes(const ChunkParameters& chunk, std::size_t end) const {
  return format_ != WeightEncoding::Full && end > 0 ? message_bytes(chunk, end - 1) : 0;
}

/// Counts the buckets in use and the next bucket, whose gather is in flight after a unit of this grid was used.
double UnshardedUnits::params_forward(const ChunkParameters& chunk, UnitRange used) const {
  const BucketRange buckets = buckets_of(chunk, used);
  double sum = buckets.count() > 0 ? unpack_bytes(chunk, buckets.end) : 0;
  for (std::size_t b = buckets.first; b < buckets.end; ++b) sum += bytes(chunk, b, param_width_);
  if (overlaps_gather_ && buckets.end > 0 && buckets.end < chunk.buckets.size())
    sum += message_bytes(chunk, buckets.end);
  return sum;
}

/// Counts the buckets in use and the preceding bucket, which is prefetched after a unit of this grid was used unless
/// several buckets are in use.
double UnshardedUnits::params_backward(const ChunkParameters& chunk, UnitRange used) const {
  const BucketRange buckets = buckets_of(chunk, used);
  double sum = buckets.count() > 0 ? unpack_bytes(chunk, buckets.end) : 0;
  for (std::size_t b = buckets.first; b < buckets.end; ++b)
    sum += is_kept(chunk, b) ? 0 : bytes(chunk, b, param_width_);
  const bool has_begun = buckets.count() == 1 || (buckets.count() == 0 && buckets.end < chunk.buckets.size());
  if (overlaps_gather_ && has_begun && buckets.first > 0 && !is_kept(chunk, buckets.first - 1))
    sum += message_bytes(chunk, buckets.first - 1);
  return sum;
}

/// Counts the buckets in use and the bucket used before them, whose gradients are being reduced. Initially, this is the
/// bucket of the first unit in the previous pass.
double UnshardedUnits::grads_backward(const ChunkParameters& chunk, UnitRange used) const {
  const BucketRange buckets = buckets_of(chunk, used);
  double sum = 0;
  for (std::size_t b = buckets.first; b < buckets.end; ++b) sum += is_kept(chunk, b) ? 0 : bytes(chunk, b, grad_width_);
  if (!overlaps_reduce_ || chunk.buckets.empty()) return sum;
  if (buckets.end < chunk.buckets.size()) return sum + bytes(chunk, buckets.end, grad_width_);
  return sum + (has_several_microbatches_ ? bytes(chunk, 0, grad_width_) : 0);
}

UnshardedBytes UnshardedUnits::forward_bytes(UnitRange used) const {
  UnshardedBytes sum;
  for (const ChunkParameters* chunk : grids_) sum.params += params_forward(*chunk, used);
  return sum;
}

UnshardedBytes UnshardedUnits::backward_bytes(UnitRange used) const {
  UnshardedBytes sum;
  if (keeps_embedding_)
    sum = {.params = bytes(*grids_.front(), 0, param_width_), .grads = bytes(*grids_.front(), 0, grad_width_)};
  for (const ChunkParameters* chunk : grids_) {
    sum.params += params_backward(*chunk, used);
    sum.grads += grads_backward(*chunk, used);
  }
  return sum;
}

std::vector<UsedUnits> used_units(const ModelConfig& config, const Recompute& recompute, const StageContents& stage) {
  std::vector<UsedUnits> used;
  if (stage.has_embedding) used.push_back({.units = kEmbeddingUnits, .is_embedding = true});
  int unit = kEmbeddingUnits.end;
  i64 layer = stage.first_layer;
  for (const LayerGroup& group : layer_groups(recompute, stage.num_layers())) {
    used.push_back({.units = {unit, unit + 1},
                    .first_layer = layer,
                    .layers = group.layers,
                    .is_recomputed = group.is_recomputed});
    layer += group.layers;
    ++unit;
  }
  // The output has the final norm and the output matrix and, with multi-token prediction, the word embeddings and its
  // layers.
  const int output_units = 2 + static_cast<int>(config.mtp_num_layers > 0 ? 1 + config.mtp_num_layers : 0);
  if (stage.has_output_part()) used.push_back({.units = {unit, unit + output_units}, .is_output = true});
  return used;
}

std::vector<UnitActivations> unit_activation_bytes(LayerSizes& sizes, const StageContents& stage,
                                                   const std::vector<UsedUnits>& used) {
  const ModelConfig& config = sizes.config();
  const ActivationSetup& setup = sizes.setup();
  const i64 dy = padded_alloc_size(residual_bytes(config, setup)),
            held = stage.sends_predictions() ? prediction_bytes(config, setup) : 0,
            input = padded_alloc_size(recompute_input_bytes(config, setup));
  std::vector<UnitActivations> list;
  i64 saved = 0;
  for (const UsedUnits& u : used) {
    i64 layers = 0, working = u.is_embedding ? dy : 0;
    for (i64 layer = u.first_layer; layer < u.first_layer + u.layers; ++layer) {
      layers += sizes.layer(layer).saved;
      working = std::max(working, sizes.layer(layer).working);
    }
    if (u.is_output) working = sizes.output(stage).saved + sizes.output(stage).working;
    list.push_back({.saved_earlier = saved, .live = layers + working + (u.is_output ? 0 : held)});
    if (setup.offload == OffloadTier::Device) saved += u.is_recomputed ? input : layers;
  }
  return list;
}

i64 largest_buckets(const RankParameters& parameters) {
  i64 peak = 0;
  for (const auto* chunks : {&parameters.dense, &parameters.experts}) {
    i64 largest = 0;
    for (const ChunkParameters& chunk : *chunks) {
      for (const i64 bucket : chunk.buckets) largest = std::max(largest, bucket);
    }
    peak += largest;
  }
  return peak;
}

UnshardedBytes max_unsharded_bytes(const std::vector<UsedUnits>& used, const UnshardedUnits& units) {
  UnshardedBytes peak;
  for (const UsedUnits& u : used) {
    const UnshardedBytes forward = units.forward_bytes(u.units), backward = units.backward_bytes(u.units);
    peak.params = std::max({peak.params, forward.params, backward.params});
    peak.grads = std::max(peak.grads, backward.grads);
  }
  return peak;
}

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
  const DType type = message_type(share_.layout.formats.grad_reduce_format());
  return static_cast<double>(padded_alloc_size(message_elements(type, elements) * size_of(type)));
}

/// Includes intra-node sums, which are computed from received messages and packed again.
double GradientMessages::packing_bytes(i64 elements) const {
  const double message = 2 * bytes(elements);
  if (!has_node_groups()) return message;
  const i64 node_elements = elements / share_.layout.node_ranks;
  const auto sum = static_cast<double>(padded_alloc_size(node_elements * size_of(accumulate_dtype(setup_.dtype))));
  return std::max({message, message / 2 + sum, sum + 2 * bytes(node_elements)});
}

double GradientMessages::in_flight_bytes(i64 elements) const {
  return 2 * bytes(has_node_groups() ? elements / share_.layout.node_ranks : elements);
}

double GradientMessages::max_bytes() const {
  if (share_.layout.formats.grad_reduce_format() == GradReduceFormat::Full) return 0;
  const i64 largest = largest_buckets(parameters_);
  if (share_.layout.zero_stage >= 2)
    return packing_bytes(largest) +
           static_cast<double>(padded_alloc_size(largest / share_.shards() * size_of(accumulate_dtype(setup_.dtype))));
  return packing_bytes(largest) + (has_several_buckets(parameters_) ? in_flight_bytes(largest) : 0);
}

double GradientMessages::peak_bytes_with(const std::vector<UsedUnits>& used,
                                         const std::vector<UnitActivations>& activations) const {
  double max_bytes = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    double during = static_cast<double>(activations[i].saved_earlier + activations[i].live);
    auto after = static_cast<double>(activations[i].saved_earlier);
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
