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
  reduction += other.reduction;
  can_prefetch &= other.can_prefetch;
  return *this;
}

WeightTraffic::WeightTraffic(const PredictionInput& input)
    : input_(input),
      layout_(input.layout),
      collectives_(input.hardware),
      weights_(input),
      element_(real(size_of(input.work.dtype))),
      slowdown_(input.hardware.communication_slowdown()),
      weight_bytes_(layout_.formats.weight_encoding() != WeightEncoding::Full ? kPackedBytes : element_),
      gradient_bytes_(layout_.formats.has_bf16_grads() ? kBf16 : input.program.gradient_bytes) {}

bool WeightTraffic::ties_own_embedding(const StageContents& stage) const {
  return stage.has_embedding && stage.has_output && !input_.work.model.untie_embeddings_and_output_weights;
}

double WeightTraffic::exposed_seconds(double work, double links) const {
  if (links <= 0) return 0;
  return input_.overlaps_data_parallel() ? std::max(slowdown_ * links, links - work) : links;
}

std::vector<WeightTraffic::Group> WeightTraffic::groups_of(const WeightCounts::BlockCounts& block) const {
  std::vector<Group> groups{{.weights = {block.dense.all, block.dense.all},
                             .shards = layout_.shard_group(),
                             .instances = layout_.instance_group(),
                             .tensors = input_.program.gathers_each_tensor ? block.tensors : 1,
                             .has_node_groups = layout_.node_ranks > 1}};
  if (block.experts.all > 0)
    groups.push_back({.weights = {block.experts.all, block.experts.all},
                      .shards = layout_.expert_shard_group(),
                      .instances = layout_.expert_instance_group()});
  return groups;
}

WeightTraffic::Group WeightTraffic::vocabulary() const {
  return {.weights = {weights_.vocabulary(), weights_.vocabulary()},
          .shards = layout_.shard_group(),
          .instances = layout_.instance_group(),
          .has_node_groups = layout_.node_ranks > 1};
}

std::vector<WeightTraffic::Group> WeightTraffic::groups_of(const StageContents& stage) const {
  std::vector<Group> groups{{.weights = weights_.stage_weights(stage),
                             .shards = layout_.shard_group(),
                             .instances = layout_.instance_group(),
                             .has_node_groups = layout_.node_ranks > 1}};
  if (const WeightCount experts = weights_.stage_experts(stage); experts.all > 0)
    groups.push_back(
        {.weights = experts, .shards = layout_.expert_shard_group(), .instances = layout_.expert_instance_group()});
  return groups;
}

double WeightTraffic::measured_ns(double MeasuredRates::*rate, const RankGroup& group) const {
  const MeasuredRates* measured = input_.hardware.measured(input_.work.gemms());
  return measured && group.ranks > 1 && collectives_.is_within_first_tier(group) ? measured->*rate : 0;
}

Transfer WeightTraffic::gather(const Group& group, bool uses_secondary_shard) const {
  const RankGroup ranks = uses_secondary_shard && group.has_node_groups ? layout_.node_group() : group.shards;
  const double elements = group.weights.all;
  if (const double ns = measured_ns(&MeasuredRates::gathered, ranks);
      ns > 0 && layout_.formats.weight_encoding() == WeightEncoding::Full)
    return {.links = 1e-9 * ns * elements};
  Transfer sum{.links = group.tensors * collectives_.all_gather(weight_bytes_ * elements / group.tensors, ranks)};
  if (layout_.formats.weight_encoding() !=
      WeightEncoding::Full)  // packed by the owner of a shard, and unpacked by all ranks
    sum.device =
        input_.hardware.traffic_seconds((kPackedBytes + element_) * elements * (1 + 1 / real(group.shards.ranks)));
  return sum;
}

Transfer WeightTraffic::packed_reduce_scatter(double elements, const Group& group) const {
  const double bytes = layout_.formats.grad_reduce_format() == GradReduceFormat::Int8 ? kPackedBytes : kBf16;
  // Each element is read and packed; each received message is added to the sum.
  const auto device = [&](double count) {
    return input_.hardware.traffic_seconds((3 * kAccumulateBytes + 2 * bytes) * count);
  };
  if (!group.has_node_groups) return {collectives_.all_to_all(bytes * elements, group.shards), device(elements)};
  const double node_elements = elements / real(layout_.node_ranks);
  return {collectives_.all_to_all(bytes * elements, layout_.node_group()) +
              collectives_.all_to_all(bytes * node_elements, layout_.inter_node_group()),
          device(elements) + device(node_elements)};
}

Transfer WeightTraffic::reduce_scatter_gradients(const Group& group) const {
  if (layout_.formats.grad_reduce_format() != GradReduceFormat::Full)
    return packed_reduce_scatter(group.weights.all, group);
  if (const double ns = measured_ns(&MeasuredRates::scattered, group.shards);
      ns > 0 && !layout_.formats.has_bf16_grads())
    return {.links = 1e-9 * ns * group.weights.summed};
  const double tensors = group.tensors, bytes = gradient_bytes_ * group.weights.summed / tensors;
  return {.links = tensors * collectives_.reduce_scatter(bytes, group.shards)};
}

double WeightTraffic::factor_seconds(double elements) const {
  const double flops = 6 * real(layout_.formats.power_sgd_rank) * elements;
  return flops / input_.hardware.gemm_flops(GemmType::Fp32) + input_.hardware.traffic_seconds(kFactorBytes * elements);
}

/// Returns the reduce-scatter of a unit's gradients and their accumulation over microbatches.
Transfer WeightTraffic::reduce_unit(const Group& group) const {
  Transfer sums = reduce_scatter_gradients(group);
  if (input_.program.all_reduces_gradients) sums.links *= 2;
  sums.device += input_.hardware.traffic_seconds(3 * gradient_bytes_ * group.weights.all / real(group.shards.ranks));
  return sums;
}

UnitTraffic WeightTraffic::unit_traffic(const Group& group) const {
  UnitTraffic unit;
  if (layout_.zero_stage < 2) return unit;
  unit.reduction = reduce_unit(group);
  if (layout_.zero_stage < 3) return unit;
  unit.first = gather(group, false);
  unit.forward = unit.backward = gather(group, true);
  return unit;
}

UnitTraffic WeightTraffic::layer_traffic(std::size_t kind, bool is_recomputed) const {
  UnitTraffic layer;
  for (const Group& group : groups_of(weights_.block_counts(kind))) layer += unit_traffic(group);
  if (is_recomputed && input_.program.gathers_again_to_recompute) layer.backward = layer.backward * 2;
  return layer;
}

UnitTraffic WeightTraffic::embedding_traffic(const StageContents& stage) const {
  UnitTraffic unit = unit_traffic(vocabulary());
  if (ties_own_embedding(stage)) unit.backward = {};  // already gathered for the output
  return unit;
}

UnitTraffic WeightTraffic::output_traffic(const StageContents& stage) const {
  UnitTraffic unit = stage.has_output ? unit_traffic(vocabulary()) : UnitTraffic();
  if (ties_own_embedding(stage)) {
    unit.first = unit.forward;  // the embedding has gathered a secondary shard
    unit.reduction = {};        // reduced together with the embedding's
    unit.can_prefetch = false;
  }
  if (input_.work.model.mtp_num_layers > 0 && stage.has_final_norm)
    for (const Group& group : groups_of(weights_.mtp_counts())) unit += unit_traffic(group);
  return unit;
}

Transfer WeightTraffic::reduce(const StageContents& stage) const {
  Transfer sum;
  for (const Group& group : groups_of(stage)) {
    if (layout_.zero_stage == 1) sum += reduce_scatter_gradients(group);
    if (layout_.zero_stage == 0)
      sum.links += collectives_.all_reduce(gradient_bytes_ * group.weights.summed, group.shards);
    if (layout_.formats.power_sgd_rank > 0) sum.device += factor_seconds(group.weights.factorized);
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

double WeightTraffic::stored_weights(const StageContents& stage) const {
  double elements = 0;
  for (const Group& group : groups_of(stage)) elements += group.weights.all / real(group.shards.ranks);
  return elements;
}

double WeightTraffic::regathered_weights(const StageContents& stage) const {
  return ties_own_embedding(stage) ? weights_.vocabulary() / real(layout_.shard_group().ranks) : 0;
}

double WeightTraffic::held_gradients(const StageContents& stage) const {
  if (layout_.zero_stage >= 2) return stored_weights(stage);
  double elements = 0;
  for (const Group& group : groups_of(stage)) elements += group.weights.all;
  return elements;
}

double WeightTraffic::updated_weights(const StageContents& stage) const {
  if (layout_.zero_stage > 0) return stored_weights(stage);
  double elements = 0;
  for (const Group& group : groups_of(stage)) elements += group.weights.all;
  return elements;
}

namespace {

/// Returns the exposed gathers of the weights that `member` selects.
double exposed_forward_comm(const std::vector<UnitCost>& units, const WeightTraffic& traffic,
                            Transfer UnitTraffic::*member) {
  double waits = 0, previous = 0;
  for (const UnitCost& unit : units) {
    const Transfer& weights = unit.traffic.*member;
    waits += traffic.exposed_seconds(unit.traffic.can_prefetch ? previous : 0, weights.links) + weights.device;
    previous = unit.forward;
  }
  return waits;
}

/// Returns the exposed communication until the last unit has computed.
double exposed_backward_comm(const std::vector<UnitCost>& units, const WeightTraffic& traffic) {
  double waits = 0, previous = 0;
  double in_flight = 0, next = 0;  // reductions concurrent with `previous`, and reductions it leaves for the next unit
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    const UnitTraffic& t = unit->traffic;
    waits += traffic.exposed_seconds(previous, t.backward.links + in_flight) + t.backward.device + t.reduction.device;
    previous = unit->backward;
    in_flight = std::exchange(next, t.reduction.links);
  }
  return waits + traffic.exposed_seconds(previous, in_flight);
}

}  // namespace

ExposedComm exposed_comm(const std::vector<UnitCost>& units, const WeightTraffic& traffic) {
  if (units.empty()) return {};
  double computed = 0, gathered = 0;
  for (const UnitCost& unit : units) computed += unit.forward, gathered += unit.traffic.forward.links;
  const double last = units.front().traffic.reduction.links,
               exposed_last = traffic.exposed_seconds(std::max(0.0, computed - gathered), last),
               first = exposed_forward_comm(units, traffic, &UnitTraffic::first),
               forward = exposed_forward_comm(units, traffic, &UnitTraffic::forward);
  return {.forward = forward + exposed_last,
          .backward = exposed_backward_comm(units, traffic),
          .boundary_exposed = first - forward + last - exposed_last};
}

}  // namespace mcpp
