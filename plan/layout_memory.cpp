#include "plan/layout_memory.h"

#include <algorithm>
#include <set>

namespace mcpp {

RankShare& LayoutMemory::share_of(const Layout& layout) {
  // Once the pipeline is full, more microbatches are never in flight.
  const i64 all = layout.microbatches(work_.global_batch_size), few = std::min(all, 3 * layout.pp + all % layout.pp);
  const ShareKey key{layout.schedule, layout.pp, layout.chunks, few, layout.stages};
  auto found = shares_.find(key);
  if (found == shares_.end()) {
    RankShare share{.stages = split_stages(layout.stage_split(work_.model)),
                    .schedule = make_schedule(layout.schedule, static_cast<int>(layout.pp), static_cast<int>(few),
                                              static_cast<int>(layout.chunks))};
    found = shares_.emplace(key, std::move(share)).first;
  }
  found->second.schedule.microbatches = static_cast<int>(all);  // whose tokens are all held
  found->second.zero_stage = layout.zero_stage;
  found->second.shards = layout.shard_group().ranks;
  found->second.expert_shards = std::max<i64>(1, layout.expert_shard_group().ranks);
  found->second.bucket_elements = work_.bucket_elements;
  found->second.states_elsewhere = layout.share_elsewhere();
  found->second.elsewhere_is_disk = layout.states_place == OffloadTier::File;
  found->second.segment_elements = work_.segment_elements;
  found->second.params = layout.params_place;
  found->second.node_ranks = layout.node_ranks;
  found->second.bf16_grads = layout.rounding.bf16_gradients;
  found->second.quantized_weights = layout.rounding.packed_weights;
  found->second.grad_wire = layout.rounding.gradients;
  found->second.power_sgd_rank = layout.rounding.power_sgd_rank;
  return found->second;
}

const RankParameters& LayoutMemory::parameters_of(const Layout& l, const ActivationSetup& setup,
                                                  const RankShare& share) {
  const ParametersKey key{{l.tp, l.ep, l.etp, l.schedule, l.pp, l.chunks, l.stages},
                          share.pipeline_rank,
                          share.shards,
                          share.expert_shards,
                          share.zero_stage >= 2,
                          share.packs()};
  auto found = parameters_.find(key);
  if (found == parameters_.end()) found = parameters_.emplace(key, rank_parameters(work_.model, setup, share)).first;
  return found->second;
}

MemoryEstimate LayoutMemory::of_rank(const Layout& layout, int pipeline_rank) {
  const ActivationSetup setup = layout.activations(work_);
  RankShare& share = share_of(layout);
  share.pipeline_rank = pipeline_rank;
  return estimate_memory(work_.model, setup, work_.states, share, parameters_of(layout, setup, share));
}

/// Ranks of the pipeline of which one needs most: of those with as many layers in each chunk the first, which has most
/// microbatches in flight, or where weight gradients wait or the stages are a V the last; and the one with the output.
std::vector<int> LayoutMemory::ranks_to_ask(const RankShare& share, ScheduleKind kind) {
  const Schedule& schedule = share.schedule;
  struct Ends {
    int first, last;
  };
  std::map<std::vector<i64>, Ends> alike;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<i64> layers;
    for (int chunk = 0; chunk < schedule.chunks_per_rank; ++chunk)
      layers.push_back(share.stages[static_cast<std::size_t>(schedule.stage_of(rank, chunk))].num_layers());
    alike.try_emplace(layers, Ends{rank, rank}).first->second.last = rank;
  }
  std::set<int> ranks{schedule.rank_of(schedule.stages() - 1)};
  for (const auto& [layers, ends] : alike) {
    ranks.insert(ends.first);
    if (row_of(kind).splits_backward) ranks.insert(ends.last);
  }
  return {ranks.begin(), ranks.end()};
}

MemoryEstimate LayoutMemory::most(const Layout& layout) {
  MemoryEstimate most;
  for (const int rank : ranks_to_ask(share_of(layout), layout.schedule)) {
    const MemoryEstimate estimate = of_rank(layout, rank);
    if (estimate.total() > most.total()) most = estimate;
  }
  return most;
}

}  // namespace mcpp
