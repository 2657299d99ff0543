#include "plan/cost/layout.h"

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

const char* tier_text(OffloadTier tier) {
  return tier == OffloadTier::Host ? "in host memory" : "on disk";
}

/// Describes which layers full recomputation covers: all one by one, groups of layers, or some layers.
std::string recompute_count_text(const Recompute& recompute) {
  if (recompute.method == Recompute::Method::Block) return str(" of ", recompute.num_layers, " layers a stage");
  return recompute.num_layers > 1 ? str(" in groups of ", recompute.num_layers) : "";
}

}  // namespace

bool Rounding::is_compatible_with(int zero_stage) const {
  return (zero_stage >= 1 || !has_quantized_comm()) && (zero_stage >= 2 || !bf16_gradients) &&
         (zero_stage <= 1 || power_sgd_rank == 0);
}

bool Layout::uses(OffloadTier tier) const {
  return states_tier == tier || params_tier == tier || activations_tier == tier;
}

RankGroup Layout::shard_group() const {
  // Ranks along cp and dp are consecutive, unless the pipeline is in between.
  const i64 ranks = cp * dp() / instances;
  return {.ranks = ranks, .stride = is_pipeline_innermost && cp == 1 ? tp * pp : tp};
}

RankGroup Layout::instance_group() const {
  const RankGroup shards = shard_group();
  return {.ranks = instances, .stride = shards.ranks * shards.stride};
}

RankGroup Layout::expert_instance_group() const {
  const RankGroup shards = expert_shard_group();
  return {.ranks = instances, .stride = shards.ranks * shards.stride};
}

StageSplit Layout::stage_split(const ModelConfig& model) const {
  return {.num_layers = model.num_layers,
          .pipeline_model_parallel_size = pp,
          .virtual_stages = chunks,
          .decoder_first_pipeline_num_layers = first_layers,
          .decoder_last_pipeline_num_layers = last_layers,
          .pipeline_model_parallel_layout = stages,
          .placement = row_of(schedule).placement};
}

ActivationSetup Layout::activations(const Workload& work) const {
  return {.dtype = work.dtype,
          .recompute = recompute,
          .micro_batch_size = micro_batch_size,
          .tensor_parallel = tp,
          .sequence_parallel = sequence_parallel,
          .partition = {.heads = cp_heads, .rings = cp / cp_heads},
          .cp_comm_type = cp_comm_type,
          .expert_parallel = ep,
          .expert_tensor_parallel = etp,
          .dispatcher = dispatcher,
          .offload = activations_tier};
}

std::string Layout::describe() const {
  std::string text = str("tp ", tp, sequence_parallel && tp > 1 ? " sp" : "");
  if (cp > 1) text += str(", cp ", cp, " ", enum_name(cp_comm_type));
  if (cp_comm_type == CpCommType::A2aP2p) text += str(" of ", cp_heads, " x ", cp / cp_heads);
  if (ep > 1) text += str(", ep ", ep);
  if (etp > 1) text += str(", etp ", etp);
  if (ep * etp > 1 && dispatcher == TokenDispatcherType::AllGather) text += " allgather";
  if (pp > 1) text += str(", pp ", pp, " ", enum_name(schedule));
  if (chunks > 1) text += str(" x ", chunks);
  if (!stages.empty()) text += " of " + stages;
  text += str(", dp ", dp(), " zero ", zero_stage);
  if (instances > 1) text += str(" in ", instances, " groups");
  if (has_secondary_shard()) text += str(" with a second copy in every ", node_ranks);
  if (rounding.packed_weights) text += ", weights packed";
  if (rounding.gradients == GradReduceFormat::Int8) text += ", gradients packed";
  if (rounding.gradients == GradReduceFormat::Bf16) text += ", gradients sent in bf16";
  if (rounding.gradients != GradReduceFormat::Full && node_ranks > 1)
    text += str(" and summed by every ", node_ranks, " first");
  if (rounding.bf16_gradients) text += ", gradients in bf16";
  if (rounding.power_sgd_rank > 0) text += str(", factors of rank ", rounding.power_sgd_rank);
  text += str(", micro batch ", micro_batch_size);
  if (recompute.granularity == Recompute::Granularity::Full)
    text += ", recompute full" + recompute_count_text(recompute);
  if (recompute.granularity == Recompute::Granularity::Selective) text += ", recompute selective";
  const std::string part = offloaded_state_fraction < 1 ? str(fixed(100 * offloaded_state_fraction, 0), " % of ") : "";
  for (const auto& [tier, what] :
       {std::pair(states_tier, part + "optimizer state"), {params_tier, "weights"}, {activations_tier, "activations"}})
    if (tier != OffloadTier::Device) text += str(", ", what, " ", tier_text(tier));
  return text;
}

}  // namespace mcpp
