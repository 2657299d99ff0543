#include "model/peak_activations.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

#include "base/integer_math.h"
#include "model/layer_memory.h"
#include "model/memory.h"
#include "model/pass_pair_memory.h"
#include "nn/offload/file_activations.h"
#include "nn/offload/host_memory.h"
#include "tensor/device.h"

namespace mcpp {
namespace {

/// Group of layers whose activations are offloaded and fetched together.
struct ActivationUnit {
  i64 bytes = 0;                  ///< saved or offloaded
  i64 recomputed = 0;             ///< additional bytes during backward
  i64 working = 0;                ///< peak in addition to the other members
  i64 working_delayed_wgrad = 0;  ///< `working` with delayed weight gradients
  i64 waiting = 0;                ///< bytes held by delayed weight gradients
};

std::vector<ActivationUnit> activation_units(LayerSizes& sizes, const StageContents& stage) {
  const i64 input = padded_alloc_size(recompute_input_bytes(sizes.config(), sizes.setup()));
  std::vector<ActivationUnit> units;
  i64 layer = stage.first_layer;
  for (const LayerGroup& group : layer_groups(sizes.setup().recompute, stage.num_layers())) {
    ActivationUnit unit;
    i64 saved = 0;
    for (const i64 end = layer + group.layers; layer < end; ++layer) {
      const LayerBytes& bytes = sizes.layer(layer);
      saved += bytes.saved;
      unit.working = std::max(unit.working, bytes.working);
      unit.working_delayed_wgrad = std::max(unit.working_delayed_wgrad, bytes.working_delayed_wgrad);
      unit.waiting += bytes.waiting;
    }
    unit.bytes = group.is_recomputed ? input : saved;
    unit.recomputed = group.is_recomputed ? saved - input : 0;
    units.push_back(unit);
  }
  return units;
}

/// Returns the bytes of the received gradient that exists during the entire backward pass of the stage, in addition to
/// the gradients within it. For most stages they are 0: the gradient replaces an activation of the same size, which the
/// last layer has saved.
i64 held_gradient_bytes(const LayerSizes& sizes, const StageContents& stage) {
  return stage.sends_predictions() ? prediction_bytes(sizes.config(), sizes.setup()) : 0;
}

/// Returns the peak of a backward pass with delayed weight gradients, in addition to saved activations that are not
/// offloaded. `held` are bytes that exist during the pass.
i64 peak_with_delayed_wgrad(const std::vector<ActivationUnit>& units, bool is_offloaded, i64 after, i64 held) {
  i64 before = 0, peak = 0;
  for (const ActivationUnit& unit : units) before += is_offloaded ? 0 : unit.bytes;
  const i64 saved = before;
  for (std::size_t i = units.size(); i-- > 0;) {
    const ActivationUnit& unit = units[i];
    const i64 unit_bytes = held + (is_offloaded ? unit.bytes : 0) + unit.recomputed + unit.working_delayed_wgrad;
    peak = std::max(peak, before + after + unit_bytes);
    before -= is_offloaded ? 0 : unit.bytes;
    after += unit.waiting;
  }
  return std::max(peak, after) - saved;
}

}  // namespace

StageActivations stage_activations(const ModelConfig& config, const ActivationSetup& setup,
                                   const StageContents& stage) {
  LayerSizes sizes(config, setup);
  return stage_activations(sizes, stage);
}

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage) {
  const ActivationSetup& setup = sizes.setup();
  const bool is_offloaded = setup.offload != OffloadTier::Device;
  const std::vector<ActivationUnit> units = activation_units(sizes, stage);
  const i64 held = held_gradient_bytes(sizes, stage);
  StageActivations sum;
  i64 freed = 0;  // saved bytes already freed by later units
  for (auto it = units.rbegin(); it != units.rend(); ++it) {
    const ActivationUnit& unit = *it;
    // While this unit runs backward, earlier units are still saved or offloaded, and this one is on the device in both
    // cases.
    const i64 unit_bytes = held + unit.working + unit.recomputed + (is_offloaded ? unit.bytes : 0);
    sum.working = std::max(sum.working, unit_bytes - freed);
    sum.waiting += unit.waiting;
    if (!is_offloaded) {
      freed += unit.bytes;
      continue;
    }
    sum.offloaded += unit.bytes, sum.blocks += ceil_div(unit.bytes, FileActivations::kBlock);
    sum.largest_unit = std::max(sum.largest_unit, unit.bytes);
  }
  sum.saved = freed;
  if (stage.has_embedding) sum.waiting += padded_alloc_size(residual_bytes(sizes.config(), setup));
  const LayerBytes output = stage.has_output_part() ? sizes.output(stage) : LayerBytes();
  sum.working_delayed_wgrad = peak_with_delayed_wgrad(units, is_offloaded, output.waiting, held);
  if (!stage.has_output_part()) return sum;
  sum.saved += output.saved;
  sum.waiting += output.waiting;
  sum.working = std::max(sum.working - output.saved, output.working);
  sum.working_delayed_wgrad = std::max(sum.working_delayed_wgrad - output.saved, output.working_delayed_wgrad);
  return sum;
}

namespace {

/// Returns the message from a different rank that a pass uses.
ReceivedMessage message_of(const Schedule& schedule, const Action& a) {
  const bool is_forward = a.kind == ActionKind::Forward;
  const int sender_stage = is_forward ? a.stage - 1 : a.stage + 1;
  if (a.kind == ActionKind::BackwardWeight || sender_stage < 0 || sender_stage >= schedule.stages() ||
      schedule.rank_of(sender_stage) == schedule.rank_of(a.stage))
    return ReceivedMessage::None;
  const bool is_last_border = std::max(a.stage, sender_stage) + 1 == schedule.stages();
  return is_last_border ? ReceivedMessage::BetweenLastStages : ReceivedMessage::Hidden;
}

/// Sets the messages that the next computation after action i of a rank uses. The engine receives them while i is
/// computed.
void set_received(const Schedule& schedule, int rank, std::size_t i, PeakCandidate& moment) {
  const std::vector<Action>& actions = schedule.per_rank[static_cast<std::size_t>(rank)];
  do ++i;
  while (i < actions.size() && !computes(actions[i].kind));
  if (i == actions.size()) return;
  moment.receives = message_of(schedule, actions[i]);
  if (is_pass_pair(schedule, rank, i)) moment.also_receives = message_of(schedule, actions[i + 1]);
}

/// Returns true if every chunk has at most as many microbatches in `counts` as in `other`.
bool is_dominated_by(const std::vector<i64>& counts, const std::vector<i64>& other) {
  return std::ranges::equal(counts, other, std::ranges::less_equal());
}

bool is_dominated_by(const PeakCandidate& moment, const PeakCandidate& other) {
  return moment.chunk == other.chunk && moment.forward_chunk == other.forward_chunk &&
         moment.delays_wgrad == other.delays_wgrad && moment.receives <= other.receives &&
         moment.also_receives <= other.also_receives && is_dominated_by(moment.saved, other.saved) &&
         is_dominated_by(moment.waiting, other.waiting);
}

/// Adds a moment unless an existing candidate dominates it, and removes candidates that the moment dominates.
template <class Moment>
void add_if_not_dominated(std::vector<Moment>& candidates, const Moment& moment) {
  if (std::ranges::any_of(candidates, [&](const Moment& other) { return is_dominated_by(moment, other); })) return;
  std::erase_if(candidates, [&](const Moment& other) { return is_dominated_by(other, moment); });
  candidates.push_back(moment);
}

/// Returns the bytes of the buffers for disk reads and writes in flight. Unused buffers are preferred to buffers that
/// are still being written.
i64 buffer_bytes(const ActivationSetup& setup, const std::vector<StageActivations>& chunks) {
  if (setup.offload != OffloadTier::File) return 0;
  i64 largest = 0;
  for (const StageActivations& chunk : chunks) largest = std::max(largest, chunk.largest_unit);
  return largest > 0 ? i64{FileActivations::kSlots} * aligned_tensor_bytes(largest) : 0;
}

/// Returns the sum over chunks of a member of StageActivations times the microbatches in `counts`.
i64 sum_bytes(const std::vector<i64>& counts, const std::vector<StageActivations>& chunks,
              i64 StageActivations::*kind) {
  i64 sum = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) sum += counts[i] * chunks[i].*kind;
  return sum;
}

}  // namespace

PeakCandidates find_peak_candidates(const Schedule& schedule, int rank) {
  const std::vector<Action>& actions = schedule.per_rank[static_cast<std::size_t>(rank)];
  const auto chunks = static_cast<std::size_t>(schedule.chunks_per_rank);
  std::vector<i64> saved(chunks), waiting(chunks);
  PeakCandidates candidates;
  const auto index_of = [&](const Action& a) { return static_cast<std::size_t>(schedule.chunk_of(a.stage)); };
  const auto add_backward = [&](const Action& a, std::size_t last, int forward_chunk) {
    PeakCandidate moment{.chunk = schedule.chunk_of(a.stage),
                         .forward_chunk = forward_chunk,
                         .delays_wgrad = a.kind == ActionKind::BackwardInput,
                         .saved = saved,
                         .waiting = waiting};
    set_received(schedule, rank, last, moment);
    add_if_not_dominated(candidates.in_backward, moment);
  };
  for (std::size_t i = 0; i < actions.size();) {
    const std::span together(actions.data() + i, is_pass_pair(schedule, rank, i) ? 2 : 1);
    const auto forward = std::ranges::find(together, ActionKind::Forward, &Action::kind);
    const int forward_chunk =
        together.size() == 2 && forward != together.end() ? schedule.chunk_of(forward->stage) : -1;
    for (const Action& a : together)
      if (computes_input_grad(a.kind)) add_backward(a, i + together.size() - 1, forward_chunk);
    if (forward != together.end()) {
      ++saved[index_of(*forward)];
      add_if_not_dominated(candidates.after_forward, saved);
    }
    for (const Action& a : together) {
      if (computes_input_grad(a.kind)) --saved[index_of(a)];
      if (a.kind == ActionKind::BackwardInput) ++waiting[index_of(a)];
      if (a.kind == ActionKind::BackwardWeight) --waiting[index_of(a)];
    }
    i += together.size();
  }
  return candidates;
}

namespace {

/// Returns the bytes of a message between stages.
i64 message_bytes(const LayerSizes& sizes, const RankMemorySpec& share, ReceivedMessage message) {
  if (message == ReceivedMessage::None) return 0;
  if (message == ReceivedMessage::BetweenLastStages && share.stages.back().receives_predictions())
    return prediction_bytes(sizes.config(), sizes.setup());
  return padded_alloc_size(residual_bytes(sizes.config(), sizes.setup()));
}

}  // namespace

PeakActivations peak_activations(LayerSizes& sizes, const RankMemorySpec& share, const PeakCandidates& moments) {
  std::vector<StageActivations> chunks;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    chunks.push_back(stage_activations(sizes, share.contents(chunk)));
  // The key has the chunks of the forward and backward pass and delays_wgrad.
  std::map<std::tuple<int, int, bool>, i64> pairs;
  const auto pair_bytes = [&](const PeakCandidate& moment) {
    const auto [it, is_new] = pairs.try_emplace({moment.forward_chunk, moment.chunk, moment.delays_wgrad});
    if (is_new)
      it->second = pass_pair_bytes(sizes.config(), sizes.setup(), share, moment.forward_chunk, moment.chunk,
                                   moment.delays_wgrad);
    return it->second;
  };
  PeakActivations peak;
  for (const PeakCandidate& moment : moments.in_backward) {
    const StageActivations& chunk = chunks[static_cast<std::size_t>(moment.chunk)];
    const i64 working = moment.forward_chunk >= 0 ? pair_bytes(moment)
                        : moment.delays_wgrad     ? chunk.working_delayed_wgrad
                                                  : chunk.working;
    const i64 in_flight = sum_bytes(moment.saved, chunks, &StageActivations::saved) +
                          sum_bytes(moment.waiting, chunks, &StageActivations::waiting);
    peak.live = std::max(peak.live, in_flight + working + message_bytes(sizes, share, moment.receives) +
                                        message_bytes(sizes, share, moment.also_receives));
  }
  for (const std::vector<i64>& saved : moments.after_forward) {
    peak.offloaded = std::max(peak.offloaded, sum_bytes(saved, chunks, &StageActivations::offloaded));
    peak.blocks = std::max(peak.blocks, sum_bytes(saved, chunks, &StageActivations::blocks));
  }
  peak.live += buffer_bytes(sizes.setup(), chunks);
  return peak;
}

}  // namespace mcpp
