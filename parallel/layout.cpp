#include "parallel/layout.h"

#include <utility>

#include "base/number_format.h"

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

std::string Layout::describe() const {
  std::string text = str("tp ", tp, sequence_parallel && tp > 1 ? " sp" : "", tp_comm_overlap ? " overlapped" : "");
  if (cp > 1) text += str(", cp ", cp, " ", enum_name(cp_comm_type));
  if (cp_comm_type == CpCommType::A2aP2p) text += str(" of ", cp_heads(), " x ", cp / cp_heads());
  if (ep > 1) text += str(", ep ", ep);
  if (etp > 1) text += str(", etp ", etp);
  if ((ep > 1 || etp > 1) && dispatcher != TokenDispatcherType::AllToAll) {
    text += str(" ", enum_name(dispatcher));
    if (dispatch_node_ranks > 0) text += str(" of ", dispatch_node_ranks, " ranks per node");
  }
  if (overlap_moe_expert_parallel_comm) text += " overlapped";
  if (pp > 1) text += str(", pp ", pp, " ", enum_name(schedule));
  if (chunks > 1) text += str(" x ", chunks);
  if (!stages.empty()) text += " of " + stages;
  text += str(", dp ", dp, " zero ", zero_stage);
  if (instances > 1) text += str(" in ", instances, " groups");
  if (has_secondary_shard()) text += str(" with a second copy in every ", node_ranks);
  const GradReduceFormat format = formats.grad_reduce_format();
  if (formats.quantized_weights) text += ", weights packed";
  if (formats.fp8_param_gather) text += ", weights sent in fp8";
  if (format == GradReduceFormat::Int8) text += ", gradients packed";
  if (format == GradReduceFormat::Bf16) text += ", gradients sent in bf16";
  if (format != GradReduceFormat::Full && node_ranks > 1) text += str(" and summed by every ", node_ranks, " first");
  if (formats.has_bf16_grads()) text += ", gradients in bf16";
  if (formats.power_sgd_rank > 0) text += str(", factors of rank ", formats.power_sgd_rank);
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
