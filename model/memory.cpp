#include "model/memory.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "base/io/scratch_file.h"
#include "model/config/block_spec.h"
#include "model/meta_model.h"
#include "model/peak_activations.h"
#include "model/unsharded_units.h"
#include "nn/offload/file_activations.h"
#include "nn/offload/file_states.h"
#include "nn/offload/host_memory.h"
#include "nn/offload/stored_array.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/dp/power_sgd.h"
#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/pack.h"

namespace mcpp {
namespace {

/// Returns true if a chunk of the rank satisfies the predicate.
template <class Predicate>
bool any_chunk(const RankMemorySpec& share, const Predicate& predicate) {
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    if (std::invoke(predicate, share.contents(chunk))) return true;
  return false;
}

/// Returns true if the rank's output layer or multi-token prediction use the weight of its own word embeddings.
bool output_uses_own_embedding(const ModelConfig& c, const RankMemorySpec& share) {
  return c.output_uses_embeddings() && any_chunk(share, &StageContents::has_embedding) &&
         any_chunk(share,
                   c.untie_embeddings_and_output_weights ? &StageContents::has_final_norm : &StageContents::has_output);
}

/// Number of different rotary tables.
i64 rotary_tables(const BlockKinds& blocks) {
  std::set<RotaryKind> kinds;
  for (const BlockSpec& block : blocks.kinds)
    if (const auto attention = block.core_attention(); attention && attention->rope != RotaryKind::None)
      kinds.insert(attention->rope);
  return static_cast<i64>(kinds.size());
}

/// Returns the bytes of the tokens and targets of all microbatches, including multi-token prediction, and of RoPE
/// tables.
i64 constant_activations(const LayerSizes& sizes, const RankMemorySpec& share) {
  const ModelConfig& c = sizes.config();
  const ActivationSetup& setup = sizes.setup();
  const i64 rotary = rotary_tables(sizes.blocks()) *
                     padded_alloc_size(c.max_positions() * c.rotary_dim() * size_of(accumulate_dtype(setup.dtype)));
  const i64 tokens = setup.tokens(c) * share.schedule.microbatches;
  const i64 token_tensors = 2 + (any_chunk(share, &StageContents::has_output_part) ? 2 * c.mtp_num_layers : 0);
  i64 rotary_chunks = 0;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    rotary_chunks +=
        share.contents(chunk).num_layers() > 0 || (share.contents(chunk).has_final_norm && c.mtp_num_layers > 0);
  return rotary_chunks * rotary + token_tensors * tokens * size_of(DType::I32);
}

}  // namespace

i64 ChunkParameters::total() const {
  return std::accumulate(buckets.begin(), buckets.end(), i64{0});
}

void visit_rank_meta_model(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share,
                           const std::function<void(GPTModel& chunk)>& f) {
  MetaModelContext meta(setup);
  ModelContext context = meta.context(config);
  const auto final_norm = std::ranges::find_if(share.stages, &StageContents::has_final_norm);
  context.final_norm_rank = share.schedule.rank_of(static_cast<int>(final_norm - share.stages.begin()));
  std::vector<StageContents> stages;
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk) stages.push_back(share.contents(chunk));
  for (const auto& chunk : make_chunks(context, stages)) f(*chunk);
}

ActivationSetup activation_setup(const Layout& layout, DType dtype) {
  return {.dtype = dtype,
          .recompute = layout.recompute,
          .micro_batch_size = layout.micro_batch_size,
          .tensor_parallel = layout.tp,
          .sequence_parallel = layout.sequence_parallel,
          .tp_comm_overlap = layout.tp_comm_overlap,
          .partition = {.heads = layout.cp_heads(), .rings = layout.cp / layout.cp_heads()},
          .cp_comm_type = layout.cp_comm_type,
          .expert_parallel = layout.ep,
          .expert_tensor_parallel = layout.expert_tp(),
          .dispatcher = layout.dispatcher,
          .dispatch_node_ranks = layout.dispatch_node_ranks,
          .overlap_moe_expert_parallel_comm = layout.overlap_moe_expert_parallel_comm,
          .offload = layout.activations_tier};
}

RankMemorySpec single_rank_spec(const ModelConfig& config) {
  return {.stages = {{.first_layer = 0, .end_layer = config.num_layers}}, .schedule = one_f_one_b(1, 1)};
}

namespace {

/// Allocation size of a tensor with `elements` elements.
double tensor_bytes(i64 elements, i64 element) {
  return static_cast<double>(padded_alloc_size(elements * element));
}

/// Adds the offloaded weights and their disk I/O buffers.
void add_offloaded_params(const ChunkParameters& chunk, OffloadTier tier, i64 element, i64 shards,
                          MemoryEstimate& sum) {
  std::vector<i64> parts;
  for (const i64 bucket : chunk.buckets) {
    sum.offloaded_params += tensor_bytes(bucket / shards, element);
    parts.push_back(aligned_bytes(bucket / shards * element));
  }
  if (tier == OffloadTier::File) sum.params += static_cast<double>(FileStates::memory_for(std::move(parts)));
}

/// Returns the bytes of the temporary buffers of an asynchronous save. If its copy is encoded or on disk, tensors are
/// converted to the file format one at a time, from chunks of the copy.
double save_buffer_bytes(const ActivationSetup& setup, const StatesPerWeight& states, const RankMemorySpec& share,
                         const RankParameters& parameters) {
  const bool is_encoded = states.has_param_remainders || states.has_encoded_moments;
  const bool is_on_disk = (share.offloads_states_to_disk() && share.layout.effective_offloaded_fraction() > 0) ||
                          share.layout.params_tier == OffloadTier::File;
  if (share.save_copy_ranks == 0 || !(is_encoded || is_on_disk)) return 0;
  i64 largest = 0;
  for (const auto* chunks : {&parameters.dense, &parameters.experts}) {
    for (const ChunkParameters& chunk : *chunks) largest = std::max(largest, chunk.largest);
  }
  const i64 part = largest / share.save_copy_ranks, element = size_of(accumulate_dtype(setup.dtype));
  // bf16 weights, remainders and master weights; or moments and their encoded form.
  const i64 chunk = states.has_param_remainders ? 2 + 2 + 4 : is_encoded ? element + 2 : 0;
  return tensor_bytes(part, element) + tensor_bytes(std::min(part, StoredArray::kChunk), chunk);
}

/// Persistent bytes of the parameters of the chunks on one grid, sharded across `shards` ranks according to the ZeRO
/// stage. `offloaded_state_fraction`: offloaded fraction of the states.
MemoryEstimate persistent_memory(const ActivationSetup& setup, const StatesPerWeight& states,
                                 const RankMemorySpec& share, double offloaded_state_fraction, i64 shards,
                                 const std::vector<ChunkParameters>& chunks) {
  const i64 element = size_of(setup.dtype), grad = size_of(accumulate_dtype(setup.dtype));
  const i64 kept_grad = share.layout.formats.has_bf16_grads() ? size_of(DType::BF16) : grad;
  const auto shards_from = [&](int stage) { return share.layout.zero_stage >= stage ? shards : 1; };
  const double states_of_all = states.other_states + states.master(setup.dtype);
  const double copied_fraction =
      share.offloads_states_to_disk() ? 1 - offloaded_state_fraction : 1;  // snapshots of offloaded states are on disk
  MemoryEstimate sum;
  double state = 0, saved = 0, power_sgd = 0;
  for (const ChunkParameters& chunk : chunks) {
    if (share.layout.params_tier == OffloadTier::Device)
      sum.params += tensor_bytes(chunk.total() / shards_from(3), element);
    else
      add_offloaded_params(chunk, share.layout.params_tier, element, shards, sum);
    // Weights are updated in full precision, separately from the rounded ones that are gathered.
    if (share.layout.formats.weight_encoding() != WeightEncoding::Full && share.layout.zero_stage < 3)
      sum.params += tensor_bytes(chunk.total() / shards, element);
    sum.grads += tensor_bytes(chunk.total() / shards_from(2), kept_grad);
    for (const i64 bucket : chunk.buckets) state += states_of_all * tensor_bytes(bucket / shards_from(1), grad);
    power_sgd += 2 * tensor_bytes(chunk.low_rank, grad);  // states of the previous step and of this one
    const double matrix_savings =
        static_cast<double>(grad * chunk.matrices) * (states.other_states - states.matrix_states);
    state -= matrix_savings / static_cast<double>(shards_from(1));
    const auto all = static_cast<double>(chunk.all);
    // If master weights are stored as remainders, the model weights are a part of them and are copied a second time.
    const int copies = share.layout.params_tier == OffloadTier::File ? 0 : states.has_param_remainders ? 2 : 1;
    const double weights = all * static_cast<double>(element * copies);
    saved += weights + copied_fraction * (all * static_cast<double>(grad) * states_of_all - matrix_savings);
  }
  sum.optimizer_state = state * (1 - offloaded_state_fraction) + power_sgd;
  sum.offloaded = state * offloaded_state_fraction;
  if (share.save_copy_ranks > 0) sum.save_copy = saved / static_cast<double>(share.save_copy_ranks);
  return sum;
}

/// Returns the peak of activations and unsharded units together during the backward pass of a microbatch.
/// `after_output` are bytes that exist only after the backward pass of the output.
double peak_with_unsharded(const std::vector<UsedUnits>& used, const std::vector<UnitActivations>& activations,
                           const UnshardedUnits& unsharded, double after_output) {
  double max_bytes = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    const UnshardedBytes bytes = unsharded.backward_bytes(used[i].units);
    max_bytes = std::max(max_bytes, static_cast<double>(activations[i].saved_earlier + activations[i].live) +
                                        bytes.params + bytes.grads + (used[i].is_output ? 0 : after_output));
  }
  return max_bytes;
}

/// Returns the bytes of the bf16 copy of the largest unsharded gradient, which exists if gradients are stored in bf16.
double bf16_grad_bytes(const RankParameters& parameters) {
  return tensor_bytes(largest_buckets(parameters), size_of(DType::BF16));
}

/// Adds the peak of units that ZeRO shards, and the separate gradient of a shared weight.
void add_unsharded(LayerSizes& sizes, const RankMemorySpec& share, const RankParameters& parameters,
                   MemoryEstimate& sum) {
  const ActivationSetup& setup = sizes.setup();
  const bool is_shared = output_uses_own_embedding(sizes.config(), share);
  // Gradients are rounded or packed before the overlapped reduction, so no second unit is unsharded.
  RankMemorySpec unit_spec = share;
  unit_spec.layout.overlap_grad_reduce = share.layout.overlap_grad_reduce && !share.layout.formats.has_bf16_grads() &&
                                         share.layout.formats.grad_reduce_format() == GradReduceFormat::Full;
  UnshardedBytes max_bytes;
  for (std::size_t i = 0; i < parameters.dense.size(); ++i) {
    const StageContents& stage = share.contents(static_cast<int>(i));
    const ChunkParameters& dense = parameters.dense[i];
    const bool keeps_embedding = is_shared && stage.has_embedding;
    // The output's part of a shared weight's gradient is kept separately.
    const double separate_grad =
        keeps_embedding ? tensor_bytes(dense.first, size_of(accumulate_dtype(setup.dtype))) : 0;
    sum.grads += separate_grad;
    if (share.layout.zero_stage < 2) continue;
    const UnshardedUnits unsharded(dense, parameters.experts.empty() ? nullptr : &parameters.experts[i], unit_spec,
                                   setup.dtype, keeps_embedding);
    const std::vector<UsedUnits> used = used_units(sizes.config(), setup.recompute, stage);
    const UnshardedBytes chunk_bytes = max_unsharded_bytes(used, unsharded);
    max_bytes.params = std::max(max_bytes.params, chunk_bytes.params);
    max_bytes.grads = std::max(max_bytes.grads, chunk_bytes.grads);
    if (parameters.dense.size() > 1) continue;
    const StageActivations stage_memory = stage_activations(sizes, stage);
    // If only multi-token prediction uses the embeddings, their gradient is allocated after the peak of the output.
    const double after_output = sizes.config().untie_embeddings_and_output_weights ? separate_grad : 0;
    sum.peak_excess = static_cast<double>(stage_memory.saved + stage_memory.working) + chunk_bytes.params +
                      chunk_bytes.grads + after_output -
                      peak_with_unsharded(used, unit_activation_bytes(sizes, stage, used), unsharded, after_output);
  }
  sum.params += max_bytes.params;
  sum.grads += max_bytes.grads;
  if (share.layout.formats.has_bf16_grads() && share.layout.zero_stage >= 2 &&
      share.layout.formats.grad_reduce_format() == GradReduceFormat::Full)
    sum.grads += bf16_grad_bytes(parameters);
}

double packed_bytes(i64 elements) {
  return tensor_bytes(packed_words(elements), size_of(DType::I32));
}

/// Returns the bytes of the secondary weight shard inside a node.
double secondary_shard_bytes(const ActivationSetup& setup, const RankMemorySpec& share,
                             const RankParameters& parameters) {
  if (share.layout.node_ranks == 1 || share.layout.zero_stage < 3) return 0;
  double sum = 0;
  for (const ChunkParameters& chunk : parameters.dense) {
    const i64 part = chunk.total() / share.layout.node_ranks;
    sum += share.layout.formats.quantized_weights ? packed_bytes(part) : tensor_bytes(part, size_of(setup.dtype));
  }
  return sum;
}

/// Returns the bytes of encoded weights, sent and received, after an update. No activations exist at that time.
/// Messages in fp8 count as if all weights were sent in bf16, which is an upper bound.
double weight_messages(const RankMemorySpec& share, const RankParameters& parameters) {
  const WeightEncoding format = share.layout.formats.weight_encoding();
  if (format == WeightEncoding::Full || share.layout.zero_stage == 3) return 0;
  const auto message_bytes = [&](i64 elements) {
    return format == WeightEncoding::Int8 ? packed_bytes(elements) : tensor_bytes(elements, size_of(DType::BF16));
  };
  double sum = 0;
  const auto add = [&](const std::vector<ChunkParameters>& chunks, i64 shards) {
    for (const ChunkParameters& chunk : chunks) {
      for (const i64 bucket : chunk.buckets) sum += message_bytes(bucket) + message_bytes(bucket / shards);
    }
  };
  add(parameters.dense, share.shards());
  add(parameters.experts, share.expert_shards());
  return sum;
}

/// Returns the peak of activations plus the peak of gradient messages minus the peak of both together.
double message_peak_excess(LayerSizes& sizes, const RankMemorySpec& share, const RankParameters& parameters,
                           const GradientMessages& messages, double activations) {
  if (share.layout.formats.grad_reduce_format() == GradReduceFormat::Full || share.layout.zero_stage != 1 ||
      parameters.dense.size() > 1)
    return 0;
  const std::vector<UsedUnits> used = used_units(sizes.config(), sizes.setup().recompute, share.contents(0));
  const double combined_peak = messages.peak_bytes_with(used, unit_activation_bytes(sizes, share.contents(0), used));
  return activations + messages.max_bytes() - std::max(activations, combined_peak);
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                               const RankMemorySpec& share) {
  LayerSizes sizes(config, setup);
  const PeakCandidates moments = find_peak_candidates(share.schedule, share.pipeline_rank);
  return estimate_memory(sizes, states, share, rank_parameters(config, setup, share),
                         peak_activations(sizes, share, moments));
}

MemoryEstimate estimate_memory(LayerSizes& sizes, const StatesPerWeight& states, const RankMemorySpec& share,
                               const RankParameters& parameters, const PeakActivations& peak) {
  const ModelConfig& config = sizes.config();
  const ActivationSetup& setup = sizes.setup();
  check_countable(config, setup.tokens(config));
  const StateOffloadPlan offload_plan = plan_state_offload(setup, states, share, parameters);
  MemoryEstimate sum =
      persistent_memory(setup, states, share, offload_plan.offloaded, share.shards(), parameters.dense);
  const MemoryEstimate experts =
      persistent_memory(setup, states, share, offload_plan.offloaded, share.expert_shards(), parameters.experts);
  sum.params += experts.params, sum.grads += experts.grads;
  sum.optimizer_state += experts.optimizer_state, sum.save_copy += experts.save_copy;
  sum.optimizer_state += offload_plan.buffers;
  sum.save_copy += save_buffer_bytes(setup, states, share, parameters);
  sum.offloaded += experts.offloaded, sum.offloaded_params += experts.offloaded_params;
  add_unsharded(sizes, share, parameters, sum);
  sum.activations = static_cast<double>(peak.live + constant_activations(sizes, share));
  sum.offloaded_activations = static_cast<double>(peak.offloaded);
  sum.activations_on_disk = peak.blocks * FileActivations::kBlock;
  const double messages = weight_messages(share, parameters);
  const GradientMessages grad_messages(setup, share, parameters);
  sum.params += secondary_shard_bytes(setup, share, parameters) + messages;
  sum.grads += grad_messages.max_bytes();
  if (share.records_passes) {
    sum.recorded_passes = static_cast<double>(std::max<i64>(0, sizes.recorded_pass() - peak.live));
    return sum;  // the memory of passes is not available for messages
  }
  sum.peak_excess += std::min(messages, sum.activations) +
                     message_peak_excess(sizes, share, parameters, grad_messages, static_cast<double>(peak.live));
  return sum;
}

namespace {

/// Segments as split by optimizer/optimizer.cpp and placed by nn/offload/state_store.cpp.
class Segments {
 public:
  Segments(const ActivationSetup& setup, const RankMemorySpec& share)
      : element_(static_cast<double>(size_of(accumulate_dtype(setup.dtype)))),
        max_segment_(share.segment_elements),
        target_fraction_(share.layout.effective_offloaded_fraction()) {}

  /// Adds elements that one rule updates, with `values` state values per element.
  void add(i64 elements, double values) {
    for (; elements > 0; elements -= max_segment_) add_one(std::min(elements, max_segment_), values);
  }
  double offloaded() const { return all_ > 0 ? offloaded_bytes_ / all_ : 0; }
  /// Bytes of each offloaded segment.
  const std::vector<i64>& offloaded_segments() const { return segments_; }

 private:
  void add_one(i64 elements, double values) {
    const double bytes = static_cast<double>(elements) * values * element_;
    all_ += bytes;
    if (offloaded_bytes_ + bytes / 2 > target_fraction_ * all_) return;
    offloaded_bytes_ += bytes;
    const double vectors = std::ceil(values);
    segments_.push_back(static_cast<i64>(vectors) * aligned_bytes(std::llround(std::ceil(bytes / vectors))));
  }

  double element_;
  i64 max_segment_;
  double target_fraction_, all_ = 0, offloaded_bytes_ = 0;
  std::vector<i64> segments_;
};

}  // namespace

StateOffloadPlan plan_state_offload(const ActivationSetup& setup, const StatesPerWeight& states,
                                    const RankMemorySpec& share, const RankParameters& parameters) {
  if (share.layout.effective_offloaded_fraction() == 0) return {};
  Segments segments(setup, share);
  const double master = states.master(setup.dtype);
  const bool has_one_rule = states.matrix_states == states.other_states;
  const auto add = [&](const std::vector<ChunkParameters>& chunks, i64 shards) {
    const i64 state_shards = share.layout.zero_stage >= 1 ? shards : 1;
    for (const ChunkParameters& chunk : chunks) {
      for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
        const i64 matrices = has_one_rule ? 0 : chunk.matrices_of_buckets[b] / state_shards;
        segments.add(matrices, states.matrix_states + master);
        segments.add(chunk.buckets[b] / state_shards - matrices, states.other_states + master);
      }
    }
  };
  add(parameters.dense, share.shards());
  add(parameters.experts, share.expert_shards());
  return {.offloaded = segments.offloaded(),
          .buffers = share.offloads_states_to_disk()
                         ? static_cast<double>(FileStates::memory_for(segments.offloaded_segments()))
                         : 0};
}

}  // namespace mcpp
