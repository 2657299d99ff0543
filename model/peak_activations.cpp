#include "model/peak_activations.h"

#include <algorithm>

#include "nn/offload/file_activations.h"
#include "nn/offload/host_memory.h"
#include "tensor/device.h"

namespace mcpp {
namespace {

/// Returns true if the next computation after action i of a rank uses a message from another rank, which the engine
/// receives while i is computed.
bool receives_during(const Schedule& schedule, const std::vector<Action>& actions, std::size_t i) {
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

/// Returns true if no chunk has more than in `other`.
bool is_within(const std::vector<i64>& counts, const std::vector<i64>& other) {
  return std::ranges::equal(counts, other, std::ranges::less_equal());
}

bool is_within(const PeakCandidate& moment, const PeakCandidate& other) {
  return moment.chunk == other.chunk && moment.delays_wgrad == other.delays_wgrad &&
         moment.receives <= other.receives && is_within(moment.kept, other.kept) &&
         is_within(moment.waiting, other.waiting);
}

/// Adds a moment unless it is within one of `fullest`, and removes those that are within it.
template <class Moment>
void add_if_not_dominated(std::vector<Moment>& fullest, const Moment& moment) {
  if (std::ranges::any_of(fullest, [&](const Moment& other) { return is_within(moment, other); })) return;
  std::erase_if(fullest, [&](const Moment& other) { return is_within(other, moment); });
  fullest.push_back(moment);
}

/// Buffers for disk reads and writes in flight: an unused one is preferred to one that is still being written.
i64 buffer_bytes(const ActivationSetup& setup, const std::vector<StageActivations>& chunks) {
  if (setup.offload != OffloadTier::File) return 0;
  i64 largest = 0;
  for (const StageActivations& chunk : chunks) largest = std::max(largest, chunk.largest_unit);
  return largest > 0 ? i64{FileActivations::kSlots} * aligned_tensor_bytes(largest) : 0;
}

/// Bytes of one kind for `counts` microbatches of each chunk.
i64 bytes_of(const std::vector<i64>& counts, const std::vector<StageActivations>& chunks, i64 StageActivations::*kind) {
  i64 sum = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) sum += counts[i] * chunks[i].*kind;
  return sum;
}

}  // namespace

PeakCandidates find_peak_candidates(const Schedule& schedule, int rank) {
  const std::vector<Action>& actions = schedule.per_rank[static_cast<std::size_t>(rank)];
  const auto chunks = static_cast<std::size_t>(schedule.chunks_per_rank);
  std::vector<i64> kept(chunks), waiting(chunks);
  PeakCandidates fullest;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const ActionKind kind = actions[i].kind;
    const int chunk = schedule.chunk_of(actions[i].stage);
    const auto at = static_cast<std::size_t>(chunk);
    if (kind == ActionKind::Forward) {
      ++kept[at];
      add_if_not_dominated(fullest.after_forward, kept);
    }
    const bool delays_wgrad = kind == ActionKind::BackwardInput;
    if (computes_input_grad(kind)) {
      add_if_not_dominated(fullest.in_backward, {.chunk = chunk,
                                                 .delays_wgrad = delays_wgrad,
                                                 .receives = receives_during(schedule, actions, i),
                                                 .kept = kept,
                                                 .waiting = waiting});
      --kept[at];
      if (delays_wgrad) ++waiting[at];
    }
    if (kind == ActionKind::BackwardWeight) --waiting[at];
  }
  return fullest;
}

PeakActivations peak_activations(LayerSizes& sizes, const RankMemorySpec& share, const PeakCandidates& moments) {
  std::vector<StageActivations> chunks;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    chunks.push_back(stage_activations(sizes, share.contents(chunk)));
  const i64 message = padded_alloc_size(residual_bytes(sizes.config(), sizes.setup()));
  PeakActivations peak;
  for (const PeakCandidate& moment : moments.in_backward) {
    const StageActivations& chunk = chunks[static_cast<std::size_t>(moment.chunk)];
    const i64 working = moment.delays_wgrad ? chunk.working_delayed_wgrad : chunk.working;
    const i64 in_flight = bytes_of(moment.kept, chunks, &StageActivations::kept) +
                          bytes_of(moment.waiting, chunks, &StageActivations::waiting);
    peak.live = std::max(peak.live, in_flight + working + (moment.receives ? message : 0));
  }
  for (const std::vector<i64>& kept : moments.after_forward) {
    peak.offloaded = std::max(peak.offloaded, bytes_of(kept, chunks, &StageActivations::offloaded));
    peak.blocks = std::max(peak.blocks, bytes_of(kept, chunks, &StageActivations::blocks));
  }
  peak.live += buffer_bytes(sizes.setup(), chunks);
  return peak;
}

}  // namespace mcpp
