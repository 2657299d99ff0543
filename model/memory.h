// Training memory of one rank: parameters as declared by a model on the meta device (model/meta_model.h), and formulas.
// docs/memory_model.md derives the formulas and compares them with measurements.
#pragma once
#include <algorithm>
#include <compare>
#include <vector>

#include "base/io/offload_tier.h"
#include "model/config/context.h"
#include "parallel/pp/schedule.h"
#include "parallel/stages.h"

namespace mcpp {

// Names of the groups of ranks in MessageRecord::group: tensor-parallel ranks, context-parallel ranks that exchange
// heads, context-parallel ranks that pass keys and values, ranks that exchange the tokens of experts, the subset of
// these on one node, and ranks with the tokens of one sample.
inline constexpr const char *kTpGroup = "tp", *kHeadsGroup = "heads", *kRingGroup = "ring",
                            *kExchangeGroup = "exchange", *kNodeExchangeGroup = "node exchange",
                            *kSampleGroup = "sample";

/// Settings other than the model that determine activation sizes.
struct ActivationSetup {
  DType dtype = DType::F32;
  Recompute recompute = {};
  i64 micro_batch_size = 1;
  i64 tensor_parallel = 1;
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  SequencePartition partition = {};  ///< context-parallel sharding
  CpCommType cp_comm_type = CpCommType::P2p;
  i64 expert_parallel = 1, expert_tensor_parallel = 1;
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  i64 dispatch_node_ranks = 0;  ///< hierarchical dispatch: ranks of a node; 0 = all ranks that exchange tokens
  bool overlap_moe_expert_parallel_comm = false;
  ExpertLoad expert_load = ExpertLoad::Even;
  double expert_imbalance = 1;                ///< AssumedChoices::imbalance
  OffloadTier offload = OffloadTier::Device;  ///< tier of saved activations until backward
  Fp8Layers fp8 = {};

  /// Returns the tokens of one microbatch on one rank.
  i64 tokens(const ModelConfig& config) const { return config.seq_length / partition.ranks() * micro_batch_size; }
  auto operator<=>(const ActivationSetup&) const = default;
};
/// Returns the setup of a layout, without fp8 and with evenly loaded experts.
ActivationSetup activation_setup(const Layout& layout, DType dtype);

struct StageActivations {
  i64 saved = 0;         ///< bytes from forward to backward of one microbatch; exact
  i64 working = 0;       ///< peak of backward in addition to `saved`
  i64 offloaded = 0;     ///< bytes that are offloaded
  i64 blocks = 0;        ///< disk space of the offloaded bytes
  i64 largest_unit = 0;  ///< largest number of bytes that are offloaded or fetched together
  // If weight gradients are delayed:
  i64 waiting = 0;                ///< bytes kept for delayed weight gradients, instead of `saved` or `offloaded`
  i64 working_delayed_wgrad = 0;  ///< `working` with delayed weight gradients
};
StageActivations stage_activations(const ModelConfig& config, const ActivationSetup& setup, const StageContents& stage);

/// Part of a training run that one rank executes.
struct RankMemorySpec {
  std::vector<StageContents> stages;  ///< stages of the full pipeline
  Schedule schedule;                  ///< schedule of one step, before or after lowering
  int pipeline_rank = 0;
  Layout layout = {};
  i64 segment_elements = i64{4} << 20;  ///< offload_segment_size
  /// Number of ranks that share the copy of weights and optimizer states written by an asynchronous save; 0: no copy.
  i64 save_copy_ranks = 0;
  bool records_passes = false;  ///< passes are recorded in graphs of the device

  /// Returns the number of ranks across which ZeRO shards the dense parameters.
  i64 shards() const { return layout.shard_group().ranks; }
  /// Returns the number of ranks across which ZeRO shards the parameters of experts.
  i64 expert_shards() const { return std::max<i64>(1, layout.expert_shard_group().ranks); }
  bool offloads_states_to_disk() const { return layout.states_tier == OffloadTier::File; }

  /// Returns the contents of the rank's chunk `chunk`.
  const StageContents& contents(int chunk) const {
    return stages[static_cast<std::size_t>(schedule.stage_of(pipeline_rank, chunk))];
  }
};
/// Peak of the activations of all microbatches in flight, on the device and offloaded.
struct PeakActivations {
  i64 live = 0, offloaded = 0;  ///< bytes
  i64 blocks = 0;               ///< disk blocks
};

/// Returns the spec of the full model on one rank with one microbatch per step.
RankMemorySpec single_rank_spec(const ModelConfig& config);

/// Peak bytes of each class of memory on one rank, rounded up like allocations from the device's pool. Kernel
/// workspaces (Workspace) are not included.
struct MemoryEstimate {
  double params = 0, grads = 0, optimizer_state = 0;
  double activations = 0;       ///< activations of the microbatches in flight, and the working set of the largest pass
  double recorded_passes = 0;   ///< memory of recorded passes beyond their peak of `activations`
  double save_copy = 0;         ///< data copied by an asynchronous save
  double offloaded = 0;         ///< offloaded part of optimizer_state; not in total()
  double offloaded_params = 0;  ///< offloaded part of params
  double offloaded_activations = 0;  ///< offloaded part of activations
  i64 activations_on_disk = 0;       ///< disk space of offloaded activations
  /// Sum of the peaks of all classes minus the peak of their sum. Positive if classes peak at different times, for
  /// example if ZeRO shards gradients or weights and only a few units are unsharded at a time.
  double peak_excess = 0;

  double total() const {
    return params + grads + optimizer_state + activations + recorded_passes + save_copy - peak_excess;
  }
};

/// Optimizer state per weight, excluding the master weight, in fp32 values: 2 for AdamW, 1 for SGD; 1 more with
/// averaged weights.
struct StatesPerWeight {
  double matrix_states = 2;  ///< values per weight of linear layers (Param::matrices)
  double other_states = 2;
  bool has_param_remainders = false;   ///< OptimizerConfig::store_param_remainders
  bool rounds_stochastically = false;  ///< OptimizerConfig::stochastic_rounding, which needs no master weights
  bool has_encoded_moments = false;    ///< some states are stored in an encoded form

  /// Returns the master weight of a model of type `dtype`, in fp32 values.
  double master(DType dtype) const {
    if (!is_low_precision(dtype) || rounds_stochastically) return 0;
    return has_param_remainders ? 17.0 / 32 : 1;
  }
};

/// Sizes, in elements, of the parameters of one chunk on a rank that belong to one grid.
struct ChunkParameters {
  std::vector<i64> buckets;  ///< sizes of the flat buckets, including padding; ZeRO 2 and 3 have one per unit
  std::vector<int> units;    ///< first unit of each bucket
  std::vector<i64> matrices_of_buckets;  ///< elements of linear layers in each bucket
  i64 all = 0;                           ///< elements, excluding padding
  i64 matrices = 0;                      ///< elements of linear layers
  i64 first = 0;                         ///< elements of the first unit
  i64 largest = 0;                       ///< elements of the largest parameter
  i64 low_rank = 0;                      ///< PowerSGD state: error feedback and factors

  i64 total() const;  ///< size of all buckets
};
/// Parameters of all chunks of the rank, as its modules declare them on the meta device. Depends only on the members of
/// `setup` and `share` that determine how parameters are sharded and arranged: ranks and stages, ZeRO stage, shards and
/// buckets.
struct RankParameters {
  std::vector<ChunkParameters> dense, experts;  ///< parameters by chunk
};
RankParameters rank_parameters(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share);

MemoryEstimate estimate_memory(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                               const RankMemorySpec& share);
class LayerSizes;  // sizes for a configuration and a setup (model/layer_memory.h)
/// Reuses rank_parameters() and peak_activations() (model/peak_activations.h) for many estimates.
MemoryEstimate estimate_memory(LayerSizes& sizes, const StatesPerWeight& states, const RankMemorySpec& share,
                               const RankParameters& parameters, const PeakActivations& peak);

// Optimizer states that are offloaded, and buffers for disk I/O (nn/offload/file_states.h).

/// Bytes of the optimizer states of a rank.
struct StateOffloadPlan {
  /// Offloaded bytes. Their fraction is only close to the requested fraction because segments are not split.
  double offloaded = 0;
  double buffers = 0;  ///< bytes of disk I/O buffers
};
StateOffloadPlan plan_state_offload(const ActivationSetup& setup, const StatesPerWeight& states,
                                    const RankMemorySpec& share, const RankParameters& parameters);

}  // namespace mcpp
