// A parallel layout of a run, and the workload that it runs.
#pragma once
#include <string>

#include "model/memory.h"
#include "parallel/pp/schedule_kind.h"
#include "plan/cost/collectives.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Lossy formats of communication and of gradient sums: keys that change results (docs/communication_compression.md).
struct Rounding {
  bool packed_weights = false;                          ///< zero_quantized_weights
  GradReduceFormat gradients = GradReduceFormat::Full;  ///< grad_reduce_dtype, zero_quantized_gradients
  bool bf16_gradients = false;                          ///< main_grads_dtype
  i64 power_sgd_rank = 0;

  bool operator==(const Rounding&) const = default;
  bool has_quantized_comm() const { return packed_weights || gradients != GradReduceFormat::Full; }
  bool is_compatible_with(int zero_stage) const;
};

/// Training workload, identical for all layouts.
struct Workload {
  ModelConfig model;
  DType dtype = DType::BF16;
  ProductType products = ProductType::Bf16;
  i64 global_batch_size = 1;
  StatesPerWeight states = {};
  i64 bucket_elements = 40'000'000;     ///< ddp_bucket_size
  i64 segment_elements = i64{4} << 20;  ///< offload_segment_size
  Rounding rounding = {};               ///< formats that every layout must use
  bool can_round_gradients = true;      ///< the optimizer accepts gradients in bf16
  /// Expert load imbalance: tokens routed to the experts of the busiest rank over an even share.
  double expert_imbalance = 1.1;
  /// Mean length in tokens of the documents that attention is restricted to; 0: each sample is one document.
  double document_tokens = 0;

  double tokens() const { return static_cast<double>(global_batch_size * model.seq_length); }
  /// Returns the precision of the products of the experts and of the output layer, which never use fp8.
  ProductType non_fp8_products() const { return products == ProductType::Fp8 ? ProductType::Bf16 : products; }
};

/// Parallel layout. Names are those of the configuration.
struct Layout {
  i64 world_size = 1;
  i64 tp = 1, cp = 1, pp = 1;
  bool sequence_parallel = false;
  CpCommType cp_comm_type = CpCommType::P2p;
  i64 cp_heads = 1;     ///< number of consecutive cp ranks that exchange heads
  i64 ep = 1, etp = 1;  ///< expert parallelism; only for models with experts
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  i64 chunks = 1;                         ///< num_virtual_stages_per_pipeline_rank
  i64 first_layers = 0, last_layers = 0;  ///< decoder_first_pipeline_num_layers, decoder_last_pipeline_num_layers
  std::string stages = {};  ///< pipeline_model_parallel_layout; "" = the same number of layers in every stage
  int zero_stage = 0;
  i64 instances = 1;  ///< num_distributed_optimizer_instances
  i64 micro_batch_size = 1;
  Recompute recompute = {};
  OffloadTier states_tier = OffloadTier::Device;  ///< offload tier of the optimizer states and master weights
  double offloaded_state_fraction = 1;            ///< fraction of them that is offloaded, unless the tier is Device
  OffloadTier params_tier = OffloadTier::Device;  ///< offload tier of ZeRO 3's weights; offload_params
  OffloadTier activations_tier = OffloadTier::Device;
  i64 node_ranks = 1;  ///< zero_hpz_partition_size
  Rounding rounding = {};
  /// If true, consecutive ranks are in the same pipeline rather than data-parallel group; this program does the
  /// opposite.
  bool is_pipeline_innermost = false;

  i64 dp() const { return world_size / (tp * cp * pp); }
  i64 microbatches(i64 global_batch_size) const { return global_batch_size / (micro_batch_size * dp()); }
  RankGroup tp_group() const { return {.ranks = tp, .stride = 1}; }
  RankGroup cp_group() const { return {.ranks = cp, .stride = tp}; }
  /// Return the consecutive cp ranks that exchange heads, and the ranks with the same position in each such group,
  /// which form a ring or gather keys.
  RankGroup heads_group() const { return {.ranks = cp_heads, .stride = tp}; }
  RankGroup keys_group() const { return {.ranks = cp / cp_heads, .stride = tp * cp_heads}; }
  /// Returns the ranks among which ZeRO shards: consecutive along cp and dp.
  RankGroup shard_group() const;
  /// Returns the ranks of different instances that hold the same shard.
  RankGroup instance_group() const;
  bool has_secondary_shard() const { return node_ranks > 1 && zero_stage == 3; }
  /// Return the consecutive ranks of shard_group() given by zero_hpz_partition_size, and the ranks with the same
  /// position in each such group.
  RankGroup node_group() const { return {.ranks = node_ranks, .stride = shard_group().stride}; }
  RankGroup inter_node_group() const {
    return {.ranks = shard_group().ranks / node_ranks, .stride = shard_group().stride * node_ranks};
  }
  /// Returns the ranks that exchange tokens for experts.
  RankGroup exchange_group() const { return {.ranks = ep * etp, .stride = 1}; }
  i64 expert_dp() const { return world_size / (pp * ep * etp); }
  /// Return shard_group() and instance_group() of the experts' parameters.
  RankGroup expert_shard_group() const { return {.ranks = expert_dp() / instances, .stride = ep * etp}; }
  RankGroup expert_instance_group() const;
  i64 pipeline_stride() const { return tp * cp * (is_pipeline_innermost ? 1 : dp()); }

  /// Returns the fraction of the optimizer states that is offloaded.
  double effective_offloaded_fraction() const {
    return states_tier == OffloadTier::Device ? 0 : offloaded_state_fraction;
  }
  /// Returns true if anything is offloaded to `tier`.
  bool uses(OffloadTier tier) const;
  StageSplit stage_split(const ModelConfig& model) const;
  ActivationSetup activations(const Workload& work) const;
  /// Returns text like "tp 8 sp, cp 2, pp 4 interleaved x 2, dp 16 zero 1, micro batch 1, recompute full".
  std::string describe() const;
};

class LayerSizesCache;  // model/layer_memory.h
/// Input of the step time prediction.
struct PredictionInput {
  const Hardware& hardware;
  const KernelTraits& program;
  const Workload& work;
  Layout layout;
  LayerSizesCache* sizes = nullptr;  ///< reused if not null
};

}  // namespace mcpp
