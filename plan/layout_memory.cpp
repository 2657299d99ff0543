#include "plan/layout_memory.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace mcpp {
namespace {

/// Returns candidates for the pipeline rank that needs the most memory. Among ranks with the same number of layers in
/// each chunk, it is the first, which has the most microbatches in flight, or the last if weight gradients are delayed
/// or the stages form a V. The ranks with the final norm and with the output are also candidates.
std::vector<int> peak_candidate_ranks(const RankMemorySpec& share, ScheduleKind kind) {
  const Schedule& schedule = share.schedule;
  struct Ends {
    int first, last;
  };
  std::map<std::vector<i64>, Ends> ranks_by_layers;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::vector<i64> layers;
    for (int chunk = 0; chunk < schedule.chunks_per_rank; ++chunk)
      layers.push_back(share.stages[static_cast<std::size_t>(schedule.stage_of(rank, chunk))].num_layers());
    ranks_by_layers.try_emplace(layers, Ends{rank, rank}).first->second.last = rank;
  }
  std::set<int> ranks;
  for (int stage = 0; stage < schedule.stages(); ++stage)
    if (share.stages[static_cast<std::size_t>(stage)].has_output_part()) ranks.insert(schedule.rank_of(stage));
  for (const auto& [layers, ends] : ranks_by_layers) {
    ranks.insert(ends.first);
    if (row_of(kind).splits_backward) ranks.insert(ends.last);
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace

LayoutMemory::Pipeline& LayoutMemory::get_pipeline(const Layout& layout) {
  // Once the pipeline is full, the number of microbatches in flight does not grow.
  const i64 all = layout.microbatches(work_.global_batch_size),
            scheduled = std::min(all, 3 * layout.pp + all % layout.pp);
  const auto [it, is_new] = pipelines_.try_emplace(
      {layout.schedule, layout.pp, layout.chunks, scheduled, layout.stages, layout.overlap_moe_expert_parallel_comm});
  Pipeline& pipeline = it->second;
  RankMemorySpec& share = pipeline.share;
  if (is_new) {
    share.stages = split_stages(layout, work_.model.num_layers);
    share.schedule = layout.make_schedule(scheduled);
    pipeline.peak_candidate_ranks = peak_candidate_ranks(share, layout.schedule);
  }
  share.schedule.microbatches = static_cast<int>(all);  // tokens of all microbatches are held
  share.layout = layout;
  share.segment_elements = work_.segment_elements;
  share.records_passes = work_.records_passes;
  return pipeline;
}

const RankParameters& LayoutMemory::get_parameters(const Layout& l, const ActivationSetup& setup,
                                                   const RankMemorySpec& share) {
  const ParametersKey key{{l.tp, l.ep, l.expert_tp(), l.schedule, l.pp, l.chunks, l.stages},
                          share.pipeline_rank,
                          share.shards(),
                          share.expert_shards(),
                          share.layout.zero_stage >= 2,
                          share.layout.formats.has_quantized_comm()};
  auto it = parameters_.find(key);
  if (it == parameters_.end()) it = parameters_.emplace(key, rank_parameters(chunk_params_, setup, share)).first;
  return it->second;
}

const PeakActivations& LayoutMemory::get_peak(LayerSizes& sizes, Pipeline& pipeline) {
  const int rank = pipeline.share.pipeline_rank;
  const auto [it, is_new] = pipeline.peaks.try_emplace({rank, &sizes});
  if (is_new) {
    const auto [moments, is_first] = pipeline.moments.try_emplace(rank);
    if (is_first) moments->second = find_peak_candidates(pipeline.share.schedule, rank);
    it->second = peak_activations(sizes, pipeline.share, moments->second);
  }
  return it->second;
}

MemoryEstimate LayoutMemory::estimate_rank(const Layout& layout, LayerSizes& sizes, Pipeline& pipeline, int rank) {
  pipeline.share.pipeline_rank = rank;
  return estimate_memory(sizes, work_.states, pipeline.share, get_parameters(layout, sizes.setup(), pipeline.share),
                         get_peak(sizes, pipeline));
}

MemoryEstimate LayoutMemory::estimate_rank(const Layout& layout, int pipeline_rank) {
  return estimate_rank(layout, get_sizes(layout), get_pipeline(layout), pipeline_rank);
}

MemoryEstimate LayoutMemory::peak(const Layout& layout) {
  Pipeline& pipeline = get_pipeline(layout);
  LayerSizes& sizes = get_sizes(layout);
  MemoryEstimate peak;
  for (const int rank : pipeline.peak_candidate_ranks) {
    const MemoryEstimate estimate = estimate_rank(layout, sizes, pipeline, rank);
    if (estimate.total() > peak.total()) peak = estimate;
  }
  return peak;
}

namespace {

/// Returns the tiers for which the hardware has rates.
std::vector<OffloadTier> known_tiers(const HostRates& host) {
  std::vector<OffloadTier> list{OffloadTier::Device};
  if (host.memory_bandwidth <= 0 || host.link_bandwidth <= 0) return list;
  if (host.memory > 0) list.push_back(OffloadTier::Host);
  if (host.nvme_bandwidth > 0) list.push_back(OffloadTier::File);
  return list;
}

double bytes_in_host(const Layout& layout, const MemoryEstimate& memory) {
  double sum = 0;
  for (const auto& [tier, bytes] : {std::pair(layout.states_tier, memory.offloaded),
                                    {layout.params_tier, memory.offloaded_params},
                                    {layout.activations_tier, memory.offloaded_activations}})
    if (tier == OffloadTier::Host) sum += bytes;
  return sum;
}

/// Device and host memory that a rank may use.
struct MemoryLimits {
  double device = 0, host = 0;

  bool fits(const Layout& layout, const MemoryEstimate& memory) const {
    return memory.total() <= device && bytes_in_host(layout, memory) <= host;
  }
};

/// Offloads the smallest percentage of states that fits on the device: states kept there are updated at device speed
/// and need no transfer. Offloads all of them if even that does not suffice.
FittedLayout fit_states(LayoutMemory& memory, Layout layout, const MemoryLimits& limits, OnDeviceStates states) {
  layout.offloaded_state_fraction = 1;
  const MemoryEstimate all = memory.peak(layout);
  const FittedLayout fully_offloaded{layout, all, limits.fits(layout, all)};
  if (all.offloaded <= 0 || all.total() > limits.device || states == OnDeviceStates::None) return fully_offloaded;
  const double min_percent = 100 * (1 - (limits.device - all.total()) / all.offloaded);
  // Estimates are multiples of pages and segments, so the proportional minimum may be slightly too large.
  for (i64 percent = std::max<i64>(1, std::llround(std::floor(min_percent))); percent < 100; ++percent) {
    layout.offloaded_state_fraction = static_cast<double>(percent) / 100;
    const MemoryEstimate partial = memory.peak(layout);
    if (partial.total() > limits.device) continue;
    return {layout, partial, limits.fits(layout, partial)};
  }
  return fully_offloaded;
}

}  // namespace

std::vector<OffloadPlacement> offload_placements(const HostRates& host) {
  const std::vector<OffloadTier> all = known_tiers(host);
  std::vector<OffloadPlacement> list;
  for (const OffloadTier states : all) list.push_back({.states = states});
  // Weights follow, to a tier that is at least as fast.
  for (const OffloadTier params : all)
    for (const OffloadTier states : all)
      if (params != OffloadTier::Device && states >= params) list.push_back({.states = states, .params = params});
  return list;
}

FittedLayout fit_with_offload(LayoutMemory& memory, const Hardware& hardware, Layout layout, double device_bytes,
                              OnDeviceStates states) {
  const MemoryLimits limits{device_bytes, 1e9 * hardware.host.memory};
  FittedLayout smallest;
  for (const OffloadTier tier : known_tiers(hardware.host)) {
    layout.activations_tier = tier;
    FittedLayout fitted = fit_states(memory, layout, limits, states);
    if (fitted.fits) return fitted;
    const bool is_first = tier == OffloadTier::Device;
    if (is_first || fitted.memory.total() < smallest.memory.total()) smallest = fitted;
    if (memory.workload().records_passes) break;  // graphs contain no copies to other memory
    // Does not fit even without activations.
    if (is_first && fitted.memory.total() - fitted.memory.activations > device_bytes) break;
  }
  return smallest;
}

}  // namespace mcpp
