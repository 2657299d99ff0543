#include "plan/step/weight_traffic.h"

#include <algorithm>

#include "plan/cost/real.h"
#include "tensor/ops/pack.h"

namespace mcpp {
namespace {

constexpr double kPackedBytes = 4.0 * kPackedWords / kPackedBlock;
constexpr double kWide = 4;  // of an element of fp32

/// A matrix M is made of gradient and error, multiplied twice, and replaced by product and error: bytes of an element
/// that are read and written.
constexpr double kFactorBytes = 11 * kWide;

}  // namespace

Transfer& Transfer::operator+=(const Transfer& other) {
  links += other.links;
  device += other.device;
  return *this;
}

WeightTraffic::WeightTraffic(const Job& job)
    : job_(job),
      layout_(job.layout),
      collectives_(job.hardware),
      weights_(job.work.model, job.layout),
      element_(real(size_of(job.work.dtype))),
      lost_(job.hardware.lost_to_communication()),
      weight_bytes_(layout_.rounding.packed_weights ? kPackedBytes : element_),
      gradient_bytes_(layout_.rounding.bf16_gradients ? 2 : job.program.gradient_bytes) {}

double WeightTraffic::beside(double work, double links) const {
  if (links <= 0) return 0;
  return job_.program.overlaps_data_parallel ? std::max(lost_ * links, links - work) : links;
}

std::vector<WeightTraffic::Group> WeightTraffic::of_layer(LayerKind kind) const {
  std::vector<Group> groups{{.weights = {weights_.of_layer(kind), weights_.of_layer(kind)},
                             .shards = layout_.shard_group(),
                             .instances = layout_.instance_group(),
                             .tensors = job_.program.gathers_each_tensor ? weights_.layer_tensors() : 1,
                             .has_copy = layout_.node_ranks > 1}};
  if (kind == LayerKind::Experts)
    groups.push_back({.weights = {weights_.experts_of_layer(), weights_.experts_of_layer()},
                      .shards = layout_.expert_shard_group(),
                      .instances = layout_.expert_instance_group()});
  return groups;
}

std::vector<WeightTraffic::Group> WeightTraffic::of_stage(const StageContents& stage) const {
  std::vector<Group> groups{
      {.weights = weights_.of(stage), .shards = layout_.shard_group(), .instances = layout_.instance_group()}};
  if (const WeightCount experts = weights_.experts_of(stage); experts.all > 0)
    groups.push_back(
        {.weights = experts, .shards = layout_.expert_shard_group(), .instances = layout_.expert_instance_group()});
  return groups;
}

Transfer WeightTraffic::gather(const Group& group, bool from_copy) const {
  const RankGroup ranks = from_copy && group.has_copy ? layout_.node_group() : group.shards;
  const double elements = group.weights.all;
  Transfer sum{.links = group.tensors * collectives_.all_gather(weight_bytes_ * elements / group.tensors, ranks)};
  if (layout_.rounding.packed_weights)  // by who has a part, and unpacked by all
    sum.device =
        job_.hardware.traffic_seconds((kPackedBytes + element_) * elements * (1 + 1 / real(group.shards.ranks)));
  return sum;
}

Transfer WeightTraffic::packed_sums(double elements, const Group& group) const {
  // Read and packed; and of what came each message is added to what there is.
  const auto device = [&](double of) { return job_.hardware.traffic_seconds((3 * kWide + 2 * kPackedBytes) * of); };
  if (!group.has_copy) return {collectives_.all_to_all(kPackedBytes * elements, group.shards), device(elements)};
  const double of_node = elements / real(layout_.node_ranks);
  return {collectives_.all_to_all(kPackedBytes * elements, layout_.node_group()) +
              collectives_.all_to_all(kPackedBytes * of_node, layout_.across_nodes()),
          device(elements) + device(of_node)};
}

Transfer WeightTraffic::scatter_sums(const Group& group) const {
  if (layout_.rounding.packed_gradients) return packed_sums(group.weights.all, group);
  const double tensors = group.tensors, bytes = gradient_bytes_ * group.weights.summed / tensors;
  return {.links = tensors * collectives_.reduce_scatter(bytes, group.shards)};
}

double WeightTraffic::factor_seconds(double elements) const {
  const double flops = 6 * real(layout_.rounding.power_sgd_rank) * elements;
  return flops / job_.hardware.product_flops(ProductType::Fp32) +
         job_.hardware.traffic_seconds(kFactorBytes * elements);
}

Transfer WeightTraffic::gather_layer(LayerKind kind, bool from_copy) const {
  Transfer sum;
  if (layout_.zero_stage < 3) return sum;
  for (const Group& group : of_layer(kind)) sum += gather(group, from_copy);
  return sum;
}

void WeightTraffic::add_to(UnitTime& layer, LayerKind kind, bool is_recomputed) const {
  if (layout_.zero_stage < 2) return;
  const Transfer once = gather_layer(kind, true);
  Transfer sums;
  for (const Group& group : of_layer(kind)) sums += scatter_sums(group);
  if (job_.program.sums_gradients_whole) sums.links *= 2;
  Transfer back = once * (is_recomputed && job_.program.gathers_again_to_recompute ? 2 : 1);
  back += sums;
  const double forward = layer.forward.total();
  layer.forward.data_parallel = beside(forward, once.links) + once.device;
  layer.backward_input.data_parallel =
      beside(layer.backward_input.total() + layer.backward_weight.total(), back.links) + back.device;
}

double WeightTraffic::first_gather(const UnitTime& layer, LayerKind kind) const {
  if (layout_.node_ranks == 1) return 0;
  const double work = layer.forward.total() - layer.forward.data_parallel;
  return beside(work, gather_layer(kind, false).links) - beside(work, gather_layer(kind, true).links);
}

Transfer WeightTraffic::reduce(const StageContents& stage) const {
  Transfer sum;
  for (const Group& group : of_stage(stage)) {
    if (layout_.zero_stage == 1) sum += scatter_sums(group);
    if (layout_.zero_stage == 0)
      sum.links += collectives_.all_reduce(gradient_bytes_ * group.weights.summed, group.shards);
    if (layout_.rounding.power_sgd_rank > 0) sum.device += factor_seconds(group.weights.all);
    if (layout_.instances > 1)
      sum.links +=
          collectives_.all_reduce(gradient_bytes_ * group.weights.all / real(group.shards.ranks), group.instances);
  }
  return sum;
}

Transfer WeightTraffic::gather(const StageContents& stage) const {
  Transfer sum;
  if (layout_.zero_stage != 1 && layout_.zero_stage != 2) return sum;
  for (const Group& group : of_stage(stage)) sum += gather(group, false);
  return sum;
}

double WeightTraffic::kept(const StageContents& stage) const {
  double elements = 0;
  for (const Group& group : of_stage(stage)) elements += group.weights.all / real(group.shards.ranks);
  return elements;
}

double WeightTraffic::updated(const StageContents& stage) const {
  if (layout_.zero_stage > 0) return kept(stage);
  double elements = 0;
  for (const Group& group : of_stage(stage)) elements += group.weights.all;
  return elements;
}

}  // namespace mcpp
