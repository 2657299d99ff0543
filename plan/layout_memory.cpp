#include "plan/layout_memory.h"

#include <algorithm>

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
  return found->second;
}

const RankParameters& LayoutMemory::parameters_of(const Layout& l, const ActivationSetup& setup,
                                                  const RankShare& share) {
  const ParametersKey key{{l.tp, l.ep, l.etp, l.schedule, l.pp, l.chunks, l.stages},
                          share.pipeline_rank,
                          share.shards,
                          share.expert_shards,
                          share.zero_stage >= 2};
  auto found = parameters_.find(key);
  if (found == parameters_.end()) found = parameters_.emplace(key, rank_parameters(work_.model, setup, share)).first;
  return found->second;
}

MemoryEstimate LayoutMemory::most(const Layout& layout) {
  const ActivationSetup setup = layout.activations(work_);
  RankShare& share = share_of(layout);
  const int output = share.schedule.rank_of(share.schedule.stages() - 1);
  MemoryEstimate most;
  for (const int rank : {0, output}) {
    share.pipeline_rank = rank;
    const MemoryEstimate estimate =
        estimate_memory(work_.model, setup, work_.states, share, parameters_of(layout, setup, share));
    if (estimate.total() > most.total()) most = estimate;
    if (output == 0) break;
  }
  return most;
}

}  // namespace mcpp
