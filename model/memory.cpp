#include "model/memory.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "model/layer_memory.h"
#include "model/on_paper.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

const StageContents& contents(const RankShare& share, int chunk) {
  return share.stages[static_cast<std::size_t>(share.schedule.stage_of(share.pipeline_rank, chunk))];
}

/// Whether the rank's output layer uses the weight of its own word embeddings.
bool ties_on_rank(const ModelConfig& c, const RankShare& share) {
  bool embedding = false, output = false;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk) {
    embedding |= contents(share, chunk).has_embedding;
    output |= contents(share, chunk).has_output;
  }
  return embedding && output && !c.untie_embeddings_and_output_weights;
}

ChunkParameters count(GPTModel& chunk, GridKind grid) {
  std::map<int, i64> by_unit;
  ChunkParameters counts;
  chunk.visit([&](const Param& param, int unit) {
    if (param.placement.grid != grid) return;
    by_unit[unit] += param.numel();
    if (!param.matrices.empty()) counts.matrices += param.numel();
  });
  for (const auto& [unit, elements] : by_unit) counts.units.push_back(elements);
  return counts;
}

/// Elements of the units of a chunk that are whole at the same time, where the others are cut over ranks: the one in
/// use, the neighbour that is on its way, and tied embeddings during the whole pass.
i64 whole_units(const std::vector<i64>& units, bool overlap, bool keeps_embedding) {
  i64 most = 0;
  for (std::size_t u = keeps_embedding ? 1 : 0; u < units.size(); ++u)
    most = std::max(most, units[u] + (overlap && u + 1 < units.size() ? units[u + 1] : 0));
  return most + (keeps_embedding ? units.front() : 0);
}

/// Whether the next computation after action i of a rank takes what another rank sends: the engine then receives it
/// while i computes.
bool receives_meanwhile(const Schedule& schedule, const std::vector<Action>& actions, std::size_t i) {
  for (++i; i < actions.size(); ++i) {
    const Action& a = actions[i];
    const bool forward = a.kind == ActionKind::Forward;
    if (!forward && !computes_weight_grad(a.kind) && !computes_input_grad(a.kind)) continue;
    const int giver = forward ? a.stage - 1 : a.stage + 1;
    return a.kind != ActionKind::BackwardWeight && giver >= 0 && giver < schedule.stages() &&
           schedule.rank_of(giver) != schedule.rank_of(a.stage);
  }
  return false;
}

/// Runs the rank's part of the schedule on paper.
i64 peak_activations(const ModelConfig& c, const ActivationSetup& setup, const RankShare& share) {
  std::vector<StageActivations> chunks;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    chunks.push_back(stage_activations(c, setup, contents(share, chunk)));
  const i64 message = residual_bytes(c, setup);
  const std::vector<Action>& actions = share.schedule.per_rank[static_cast<std::size_t>(share.pipeline_rank)];
  i64 kept = 0, peak = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const ActionKind kind = actions[i].kind;
    const StageActivations& chunk = chunks[static_cast<std::size_t>(share.schedule.chunk_of(actions[i].stage))];
    if (kind == ActionKind::Forward) kept += chunk.kept;
    if (computes_input_grad(kind))
      peak = std::max(peak, kept + chunk.working + (receives_meanwhile(share.schedule, actions, i) ? message : 0));
    if (computes_weight_grad(kind)) kept -= chunk.kept;  // what was put off holds about as much until then
  }
  return peak;
}

/// Tokens and targets of all microbatches, and the tables of RoPE.
i64 constant_activations(const ModelConfig& c, const ActivationSetup& setup, const RankShare& share) {
  const i64 tables = c.position_embedding_type != PositionEmbedding::Rope ? 0 : c.rope_local_base_freq > 0 ? 2 : 1;
  const i64 rotary = tables * c.max_positions() * c.rotary_dim() * size_of(wide(setup.dtype));
  const i64 tokens = setup.tokens(c) * share.schedule.microbatches;
  return share.schedule.chunks_per_rank * rotary + 2 * tokens * size_of(DType::I32);
}

}  // namespace

i64 ChunkParameters::total() const {
  return std::accumulate(units.begin(), units.end(), i64{0});
}

std::vector<ChunkParameters> chunk_parameters(const ModelConfig& config, const ActivationSetup& setup,
                                              const RankShare& share, GridKind grid) {
  Paper paper(setup.tensor_parallel);
  ModelContext context = paper.context(config);
  context.recompute = setup.recompute;
  context.sequence_parallel = setup.sequence_parallel;
  context.experts = {.ep = static_cast<int>(setup.expert_parallel),
                     .tp = static_cast<int>(setup.expert_tensor_parallel)};
  context.output_rank = share.schedule.rank_of(share.schedule.stages() - 1);
  std::vector<StageContents> stages;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk) stages.push_back(contents(share, chunk));
  std::vector<ChunkParameters> counts;
  for (const auto& chunk : make_chunks(context, stages)) counts.push_back(count(*chunk, grid));
  return counts;
}

StageActivations stage_activations(const ModelConfig& config, const ActivationSetup& setup,
                                   const StageContents& stage) {
  const i64 input = residual_bytes(config, setup);
  StageActivations sum;
  i64 next = stage.first_layer;
  for (const LayerGroup& group : layer_groups(setup.recompute, stage.num_layers())) {
    i64 layers = 0, working = 0;
    for (i64 i = 0; i < group.layers; ++i, ++next) {
      layers += layer_activation_bytes(config, setup, next);
      working = std::max(working, layer_working_bytes(config, setup, next));
    }
    sum.kept += group.is_recomputed ? input : layers;
    // What came before is all kept while this group's backward runs.
    sum.working = std::max(sum.working, working + (group.is_recomputed ? layers - input : 0));
  }
  if (!stage.has_output) return sum;
  const i64 output = output_bytes(config, setup);
  sum.kept += output;
  sum.working = std::max(sum.working - output, output_working_bytes(config, setup));
  return sum;
}

RankShare whole_share(const ModelConfig& config) {
  return {.stages = {{.first_layer = 0, .end_layer = config.num_layers}}, .schedule = one_f_one_b(1, 1)};
}

namespace {

/// Bytes of the parameters on one grid, which `shards` ranks share as the ZeRO stage says.
MemoryEstimate grid_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                           const RankShare& share, GridKind grid, const std::vector<ChunkParameters>& chunks) {
  const auto element = static_cast<double>(size_of(setup.dtype)),
             grad = static_cast<double>(size_of(wide(setup.dtype)));
  const bool tied = grid == GridKind::Dense && ties_on_rank(config, share);
  double params = 0, matrices = 0, whole_params = 0, whole_grads = 0;  // elements
  double shared = 0;  // the output layer's part of a shared weight's gradient, which is kept apart
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ChunkParameters& chunk = chunks[i];
    const bool keeps_embedding = tied && contents(share, static_cast<int>(i)).has_embedding;
    const auto most = [&](bool overlap) {
      return static_cast<double>(whole_units(chunk.units, overlap, keeps_embedding));
    };
    params += static_cast<double>(chunk.total());
    matrices += static_cast<double>(chunk.matrices);
    whole_params = std::max(whole_params, most(share.overlap_param_gather));
    whole_grads = std::max(whole_grads, most(share.overlap_grad_reduce));
    if (keeps_embedding) shared = static_cast<double>(chunk.units.front());
  }
  const auto shards = static_cast<double>(grid == GridKind::Dense ? share.shards : share.expert_shards);
  const double master = is_narrow(setup.dtype) ? 1 : 0;
  const double kept = matrices * states.of_matrices + (params - matrices) * states.of_others;
  const double state = params * master + kept;
  const double kept_grad = share.bf16_grads ? static_cast<double>(size_of(DType::BF16)) : grad;
  const double in_use = (grad + (share.bf16_grads ? kept_grad : 0)) * whole_grads;
  const double copied =
      state * (share.elsewhere_is_disk ? 1 - share.states_elsewhere : 1);  // snapshots are on the disk
  const auto cut = [&](int stage) { return share.zero_stage >= stage ? shards : 1; };
  return {.params = element * (params / cut(3) + (share.zero_stage >= 3 ? whole_params : 0)),
          .grads = kept_grad * params / cut(2) + (share.zero_stage >= 2 ? in_use : 0) + grad * shared,
          .optimizer_state = grad / cut(1) * state * (1 - share.states_elsewhere),
          .save_copy = share.savers > 0 ? (element * params + grad * copied) / static_cast<double>(share.savers) : 0,
          .elsewhere = grad / cut(1) * state * share.states_elsewhere};
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                               const RankShare& share) {
  return estimate_memory(config, setup, states, share, chunk_parameters(config, setup, share, GridKind::Dense));
}

MemoryEstimate estimate_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                               const RankShare& share, const std::vector<ChunkParameters>& dense) {
  MemoryEstimate sum = grid_memory(config, setup, states, share, GridKind::Dense, dense);
  if (config.moe.num_experts > 0) {
    const MemoryEstimate experts = grid_memory(config, setup, states, share, GridKind::Expert,
                                               chunk_parameters(config, setup, share, GridKind::Expert));
    sum.params += experts.params, sum.grads += experts.grads;
    sum.optimizer_state += experts.optimizer_state, sum.save_copy += experts.save_copy;
    sum.elsewhere += experts.elsewhere;
  }
  sum.activations =
      static_cast<double>(peak_activations(config, setup, share) + constant_activations(config, setup, share));
  return sum;
}

}  // namespace mcpp
