#include "plan/cost/layout.h"

#include "base/strings.h"

namespace mcpp {

RankGroup Layout::shard_group() const {
  // Along cp and dp ranks are neighbours, unless the pipeline lies between them.
  const i64 ranks = cp * dp() / instances;
  return {.ranks = ranks, .stride = pipeline_inside && cp == 1 ? tp * pp : tp};
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
          .cut = {.heads = cp_heads, .rings = cp / cp_heads},
          .cp_comm_type = cp_comm_type,
          .expert_parallel = ep,
          .expert_tensor_parallel = etp,
          .dispatcher = dispatcher};
}

std::string Layout::describe() const {
  std::string text = str("tp ", tp, sequence_parallel && tp > 1 ? " sp" : "");
  if (cp > 1) text += str(", cp ", cp, " ", enum_name(cp_comm_type));
  if (ep > 1) text += str(", ep ", ep);
  if (etp > 1) text += str(", etp ", etp);
  if (ep * etp > 1 && dispatcher == TokenDispatcherType::AllGather) text += " allgather";
  if (pp > 1) text += str(", pp ", pp, " ", enum_name(schedule));
  if (chunks > 1) text += str(" x ", chunks);
  if (!stages.empty()) text += " of " + stages;
  text += str(", dp ", dp(), " zero ", zero_stage);
  if (instances > 1) text += str(" in ", instances, " groups");
  text += str(", micro batch ", micro_batch_size);
  if (recompute.granularity == Recompute::Granularity::Full) text += ", recompute full";
  if (recompute.granularity == Recompute::Granularity::Selective) text += ", recompute selective";
  if (states_place == StatesPlace::Host) text += ", optimizer state in host memory";
  if (states_place == StatesPlace::Disk) text += ", optimizer state on disk";
  return text;
}

}  // namespace mcpp
