#include "plan/step/weight_traffic.h"

#include <algorithm>
#include <utility>

#include "base/integer_math.h"
#include "tensor/ops/low_precision/pack.h"

namespace mcpp {
namespace {

constexpr double kPackedBytes = 4.0 * kPackedWords / kPackedBlock;
constexpr double kAccumulateBytes = 4, kBf16 = 2;  // bytes per element

/// Bytes read and written per element: gradient plus error gives a matrix M, which is multiplied twice and replaced by
/// the product and the new error.
constexpr double kFactorBytes = 11 * kAccumulateBytes;

}  // namespace

Transfer& Transfer::operator+=(const Transfer& other) {
  links += other.links;
  device += other.device;
  return *this;
}

UnitTraffic& UnitTraffic::operator+=(const UnitTraffic& other) {
  first += other.first;
  forward += other.forward;
  backward += other.backward;
  sums += other.sums;
  is_ahead &= other.is_ahead;
  return *this;
}

WeightTraffic::WeightTraffic(const PredictionInput& job)
    : job_(job),
      layout_(job.layout),
      collectives_(job.hardware),
      weights_(job.work.model, job.layout),
      element_(real(size_of(job.work.dtype))),
      lost_(job.hardware.communication_slowdown()),
      weight_bytes_(layout_.rounding.packed_weights ? kPackedBytes : element_),
      gradient_bytes_(layout_.rounding.bf16_gradients ? kBf16 : job.program.gradient_bytes) {}

bool WeightTraffic::ties_own_embedding(const StageContents& stage) const {
  return stage.has_embedding && stage.has_output && !job_.work.model.untie_embeddings_and_output_weights;
}

double WeightTraffic::exposed_seconds(double work, double links) const {
  if (links <= 0) return 0;
  return job_.program.overlaps_data_parallel ? std::max(lost_ * links, links - work) : links;
}

std::vector<WeightTraffic::Group> WeightTraffic::groups_of(LayerKind kind) const {
  std::vector<Group> groups{{.weights = {weights_.of_layer(kind), weights_.of_layer(kind)},
                             .shards = layout_.shard_group(),
                             .instances = layout_.instance_group(),
                             .tensors = job_.program.gathers_each_tensor ? weights_.layer_tensors() : 1,
                             .has_nodes = layout_.node_ranks > 1}};
  if (kind == LayerKind::Experts)
    groups.push_back({.weights = {weights_.experts_of_layer(), weights_.experts_of_layer()},
                      .shards = layout_.expert_shard_group(),
                      .instances = layout_.expert_instance_group()});
  return groups;
}

WeightTraffic::Group WeightTraffic::vocabulary() const {
  return {.weights = {weights_.vocabulary(), weights_.vocabulary()},
          .shards = layout_.shard_group(),
          .instances = layout_.instance_group(),
          .has_nodes = layout_.node_ranks > 1};
}

std::vector<WeightTraffic::Group> WeightTraffic::groups_of(const StageContents& stage) const {
  std::vector<Group> groups{{.weights = weights_.of(stage),
                             .shards = layout_.shard_group(),
                             .instances = layout_.instance_group(),
                             .has_nodes = layout_.node_ranks > 1}};
  if (const WeightCount experts = weights_.experts_of(stage); experts.all > 0)
    groups.push_back(
        {.weights = experts, .shards = layout_.expert_shard_group(), .instances = layout_.expert_instance_group()});
  return groups;
}

double WeightTraffic::measured_ns(double MeasuredRates::*rate, const RankGroup& group) const {
  const MeasuredRates* measured = job_.hardware.measured(job_.work.products);
  return measured && group.ranks > 1 && collectives_.is_within_first_tier(group) ? measured->*rate : 0;
}

Transfer WeightTraffic::gather(const Group& group, bool from_copy) const {
  const RankGroup ranks = from_copy && group.has_nodes ? layout_.node_group() : group.shards;
  const double elements = group.weights.all;
  if (const double ns = measured_ns(&MeasuredRates::gathered, ranks); ns > 0 && !layout_.rounding.packed_weights)
    return {.links = 1e-9 * ns * elements};
  Transfer sum{.links = group.tensors * collectives_.all_gather(weight_bytes_ * elements / group.tensors, ranks)};
  if (layout_.rounding.packed_weights)  // packed by the owner of a shard, and unpacked by all ranks
    sum.device =
        job_.hardware.traffic_seconds((kPackedBytes + element_) * elements * (1 + 1 / real(group.shards.ranks)));
  return sum;
}

Transfer WeightTraffic::packed_sums(double elements, const Group& group) const {
  const double bytes = layout_.rounding.gradients == GradReduceFormat::Int8 ? kPackedBytes : kBf16;
  // Each element is read and packed; each received message is added to the sum.
  const auto device = [&](double of) { return job_.hardware.traffic_seconds((3 * kAccumulateBytes + 2 * bytes) * of); };
  if (!group.has_nodes) return {collectives_.all_to_all(bytes * elements, group.shards), device(elements)};
  const double of_node = elements / real(layout_.node_ranks);
  return {collectives_.all_to_all(bytes * elements, layout_.node_group()) +
              collectives_.all_to_all(bytes * of_node, layout_.across_nodes()),
          device(elements) + device(of_node)};
}

Transfer WeightTraffic::scatter_sums(const Group& group) const {
  if (layout_.rounding.gradients != GradReduceFormat::Full) return packed_sums(group.weights.all, group);
  if (const double ns = measured_ns(&MeasuredRates::scattered, group.shards);
      ns > 0 && !layout_.rounding.bf16_gradients)
    return {.links = 1e-9 * ns * group.weights.summed};
  const double tensors = group.tensors, bytes = gradient_bytes_ * group.weights.summed / tensors;
  return {.links = tensors * collectives_.reduce_scatter(bytes, group.shards)};
}

double WeightTraffic::factor_seconds(double elements) const {
  const double flops = 6 * real(layout_.rounding.power_sgd_rank) * elements;
  return flops / job_.hardware.product_flops(ProductType::Fp32) +
         job_.hardware.traffic_seconds(kFactorBytes * elements);
}

/// Scattered, and accumulated over microbatches.
Transfer WeightTraffic::unit_sums(const Group& group) const {
  Transfer sums = scatter_sums(group);
  if (job_.program.all_reduces_gradients) sums.links *= 2;
  sums.device += job_.hardware.traffic_seconds(3 * gradient_bytes_ * group.weights.all / real(group.shards.ranks));
  return sums;
}

UnitTraffic WeightTraffic::unit_traffic(const Group& group) const {
  UnitTraffic unit;
  if (layout_.zero_stage < 2) return unit;
  unit.sums = unit_sums(group);
  if (layout_.zero_stage < 3) return unit;
  unit.first = gather(group, false);
  unit.forward = unit.backward = gather(group, true);
  return unit;
}

UnitTraffic WeightTraffic::of_layer(LayerKind kind, bool is_recomputed) const {
  UnitTraffic layer;
  for (const Group& group : groups_of(kind)) layer += unit_traffic(group);
  if (is_recomputed && job_.program.gathers_again_to_recompute) layer.backward = layer.backward * 2;
  return layer;
}

UnitTraffic WeightTraffic::embedding_traffic(const StageContents& stage) const {
  UnitTraffic unit = unit_traffic(vocabulary());
  if (ties_own_embedding(stage)) unit.backward = {};  // already gathered for the output
  return unit;
}

UnitTraffic WeightTraffic::of_output(const StageContents& stage) const {
  UnitTraffic unit = unit_traffic(vocabulary());
  if (!ties_own_embedding(stage)) return unit;
  unit.first = unit.forward;  // the embedding has gathered a secondary shard
  unit.sums = {};             // reduced together with the embedding's
  unit.is_ahead = false;
  return unit;
}

Transfer WeightTraffic::reduce(const StageContents& stage) const {
  Transfer sum;
  for (const Group& group : groups_of(stage)) {
    if (layout_.zero_stage == 1) sum += scatter_sums(group);
    if (layout_.zero_stage == 0)
      sum.links += collectives_.all_reduce(gradient_bytes_ * group.weights.summed, group.shards);
    if (layout_.rounding.power_sgd_rank > 0) sum.device += factor_seconds(group.weights.factorized);
    if (layout_.instances > 1)
      sum.links +=
          collectives_.all_reduce(gradient_bytes_ * group.weights.all / real(group.shards.ranks), group.instances);
  }
  return sum;
}

Transfer WeightTraffic::gather(const StageContents& stage) const {
  Transfer sum;
  if (layout_.zero_stage != 1 && layout_.zero_stage != 2) return sum;
  for (const Group& group : groups_of(stage)) sum += gather(group, false);
  return sum;
}

double WeightTraffic::kept(const StageContents& stage) const {
  double elements = 0;
  for (const Group& group : groups_of(stage)) elements += group.weights.all / real(group.shards.ranks);
  return elements;
}

double WeightTraffic::regathered_weights(const StageContents& stage) const {
  return ties_own_embedding(stage) ? weights_.vocabulary() / real(layout_.shard_group().ranks) : 0;
}

double WeightTraffic::updated(const StageContents& stage) const {
  if (layout_.zero_stage > 0) return kept(stage);
  double elements = 0;
  for (const Group& group : groups_of(stage)) elements += group.weights.all;
  return elements;
}

namespace {

/// Exposed gathers of the weights that `of` selects.
double exposed_forward_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic, Transfer UnitTraffic::*of) {
  double waits = 0, before = 0;
  for (const UnitCost& unit : row) {
    const Transfer& weights = unit.traffic.*of;
    waits += traffic.exposed_seconds(unit.traffic.is_ahead ? before : 0, weights.links) + weights.device;
    before = unit.forward;
  }
  return waits;
}

/// Exposed communication until the last unit has computed.
double exposed_backward_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic) {
  double waits = 0, before = 0;
  double in_flight = 0, next = 0;  // reductions concurrent with `before`, and reductions it leaves for the next unit
  for (auto unit = row.rbegin(); unit != row.rend(); ++unit) {
    const UnitTraffic& t = unit->traffic;
    waits += traffic.exposed_seconds(before, t.backward.links + in_flight) + t.backward.device + t.sums.device;
    before = unit->backward;
    in_flight = std::exchange(next, t.sums.links);
  }
  return waits + traffic.exposed_seconds(before, in_flight);
}

}  // namespace

ExposedComm exposed_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic) {
  if (row.empty()) return {};
  double computed = 0, gathered = 0;
  for (const UnitCost& unit : row) computed += unit.forward, gathered += unit.traffic.forward.links;
  const double last = row.front().traffic.sums.links,
               last_beside = traffic.exposed_seconds(std::max(0.0, computed - gathered), last),
               first = exposed_forward_comm(row, traffic, &UnitTraffic::first),
               forward = exposed_forward_comm(row, traffic, &UnitTraffic::forward);
  return {.forward = forward + last_beside,
          .backward = exposed_backward_comm(row, traffic),
          .boundary_exposed = first - forward + last - last_beside};
}

}  // namespace mcpp
