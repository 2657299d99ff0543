// Layout of a run: the division of work among ranks, recomputation, compression and offloading. All code from the
// configuration to the kernels uses this type. Ranks are numbered with tp innermost, then cp, dp and pp
// (parallel/topology.h).
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/io/offload_tier.h"
#include "base/strings.h"
#include "parallel/pp/schedule_kind.h"
#include "tensor/dtype.h"

namespace mcpp {

/// Algorithms for context-parallel attention, named as in Megatron-LM.
enum class CpCommType : u8 {
  P2p,        ///< keys and values are passed around a ring: RingAttention
  AllGather,  ///< keys and values are gathered: GatheredAttention
  A2a,        ///< all-to-all between positions and heads: HeadExchange
  A2aP2p,     ///< hierarchical: head exchange among neighbors, ring between groups of neighbors
};
template <>
struct EnumNames<CpCommType> {
  static constexpr std::array<std::string_view, 4> value{"p2p", "all_gather", "a2a", "a2a+p2p"};
};

/// Communication pattern of token dispatch: tokens are sent to the ranks of their experts, to all ranks, or once to
/// each node and from there to the ranks of their experts.
enum class TokenDispatcherType : u8 { AllToAll, AllGather, Hierarchical };
template <>
struct EnumNames<TokenDispatcherType> {
  static constexpr std::array<std::string_view, 3> value{"alltoall", "allgather", "hierarchical"};
};

/// Types in which gradients are sent or accumulated.
enum class GradDType { Fp32, Bf16 };
template <>
struct EnumNames<GradDType> {
  static constexpr std::array<std::string_view, 2> value{"fp32", "bf16"};
};

/// Formats in which gradients are sent for reduction.
enum class GradReduceFormat : u8 {
  Full,  ///< not encoded
  Bf16,  ///< rounded to bf16
  Int8,  ///< int8 with block scales
};
/// Returns the dtype of encoded messages (tensor/ops/low_precision/pack.h).
constexpr DType message_type(GradReduceFormat format) {
  return format == GradReduceFormat::Int8 ? DType::I32 : DType::BF16;
}

/// Encoding in which ZeRO sends weights. Fp8: those that GEMMs round to fp8 in any case are sent rounded, which is
/// exact.
enum class WeightEncoding : u8 { Full, Int8, Fp8 };

/// Lossy formats of communication and of gradient sums, which change results (docs/communication_compression.md). With
/// ZeRO stage 0 nothing is encoded.
struct CommFormats {
  /// ZeRO 1 to 3: send weights as int8 (tensor/ops/low_precision/pack.h). All ranks, including the owner, compute with
  /// the decoded values; updates and checkpoints use full precision.
  bool quantized_weights = false;
  bool fp8_param_gather = false;                  ///< ZeRO 1 to 3: WeightEncoding::Fp8; excludes quantized_weights
  bool quantized_gradients = false;               ///< excludes grad_reduce_dtype bf16
  GradDType grad_reduce_dtype = GradDType::Fp32;  ///< ZeRO 1 to 3
  /// Type in which ZeRO 2 and 3 send gradients and accumulate them over microbatches (optimizer.main_grads_dtype). Sums
  /// within a unit and over ranks use the accumulate type.
  GradDType main_grads_dtype = GradDType::Fp32;
  /// ZeRO 0, 1: sum gradient matrices as factors of this rank (parallel/dp/power_sgd.h); 0 disables this.
  i64 power_sgd_rank = 0;

  bool operator==(const CommFormats&) const = default;
  WeightEncoding weight_encoding() const {
    if (fp8_param_gather) return WeightEncoding::Fp8;
    return quantized_weights ? WeightEncoding::Int8 : WeightEncoding::Full;
  }
  /// Returns the format in which ZeRO 1 to 3 send gradients; sums use full precision.
  GradReduceFormat grad_reduce_format() const {
    if (quantized_gradients) return GradReduceFormat::Int8;
    return grad_reduce_dtype == GradDType::Bf16 ? GradReduceFormat::Bf16 : GradReduceFormat::Full;
  }
  void set_grad_reduce_format(GradReduceFormat format) {
    quantized_gradients = format == GradReduceFormat::Int8;
    grad_reduce_dtype = format == GradReduceFormat::Bf16 ? GradDType::Bf16 : GradDType::Fp32;
  }
  bool has_bf16_grads() const { return main_grads_dtype == GradDType::Bf16; }
  /// Returns true if values are sent in packed messages: bucket_close_threshold().
  bool has_quantized_comm() const {
    return weight_encoding() != WeightEncoding::Full || grad_reduce_format() != GradReduceFormat::Full;
  }
  bool is_compatible_with(i64 zero_stage) const {
    return (zero_stage >= 1 || !has_quantized_comm()) && (zero_stage >= 2 || !has_bf16_grads()) &&
           (zero_stage <= 1 || power_sgd_rank == 0);
  }
};

enum class RecomputeGranularity : u8 { None, Full, Selective };
template <>
struct EnumNames<RecomputeGranularity> {
  static constexpr std::array<std::string_view, 3> value{"none", "full", "selective"};
};

/// Activation recomputation: outputs that backward recomputes instead of saving (Korthikanti et al., "Reducing
/// Activation Recomputation in Large Transformer Models", 2022). Results are bitwise identical.
struct Recompute {
  using Granularity = RecomputeGranularity;
  Granularity granularity = Granularity::None;
  /// Full: recomputes layers in groups of `num_layers` (uniform), or the first `num_layers` one by one (block).
  enum class Method : u8 { Uniform, Block } method = Method::Uniform;
  i64 num_layers = 1;
  /// Full, without sequence parallelism: saved inputs are sharded across the tensor-parallel ranks.
  bool shards_saved_inputs = false;
  /// Selective: parts of each layer to recompute.
  bool core_attn = false, layernorm = false, mlp_act = false, moe_act = false;

  auto operator<=>(const Recompute&) const = default;
};

/// Group of every `stride`-th rank in a range of consecutive ranks, like the groups along one axis of a layout.
struct RankGroup {
  i64 ranks = 1;
  i64 stride = 1;
};

/// Layout of a run. Most members are keys of [parallel]; fields() specifies the names of these keys, which are
/// Megatron-LM's where they exist there, and their meaning. layout_of() in megatron_cpp/config/layout.h fills in the
/// others.
struct Layout {
  i64 tp = 1, cp = 1, pp = 1;
  i64 dp = 1;  ///< not a key: follows from the number of ranks
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;  ///< overlap the communication of linear layers with their GEMMs
  CpCommType cp_comm_type = CpCommType::P2p;
  std::vector<i64> cp_hierarchy = {};  ///< with A2aP2p: consecutive ranks that exchange heads, and members of the ring
  i64 ep = 1, etp = 0;                 ///< only for models with experts; etp 0 = tp
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  i64 dispatch_node_ranks = 0;  ///< hierarchical dispatch: consecutive ranks of a node; 0 = the ranks of a host
  /// Exchange tokens of experts while another pass or weight gradients of experts are computed.
  bool overlap_moe_expert_parallel_comm = false;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  i64 chunks = 1;  ///< model chunks on each pipeline rank
  i64 first_layers = 0,
      last_layers = 0;      ///< layers on the first and last pipeline rank; 0 = the same number as on the other ranks
  std::string stages = {};  ///< explicit stages (parallel/stages.h); "" = the same number of layers
  i64 zero_stage = 0;
  /// Groups of neighboring data-parallel ranks that each hold a complete copy of the weights and states (HSDP).
  i64 instances = 1;
  /// Consecutive ranks of an instance that hold secondary weight shards (ZeRO 3), or sum encoded gradients first; 1
  /// disables both.
  i64 node_ranks = 1;
  CommFormats formats = {};
  i64 power_sgd_start_iter = 0;
  i64 bucket_size = 40'000'000;     ///< elements; with ZeRO 2 and 3, each unit is a bucket
  bool overlap_grad_reduce = true;  ///< reduce gradients of buckets or units while backward computes others
  /// ZeRO 1, 2: publish() does not wait for the weights; the first use of each bucket does. ZeRO 3: gather one unit
  /// ahead.
  bool overlap_param_gather = true;

  // Members that correspond to keys of other sections.
  i64 micro_batch_size = 1;
  Recompute recompute = {};
  OffloadTier states_tier = OffloadTier::Device;  ///< offload tier of the optimizer states and master weights
  double offloaded_state_fraction = 1;            ///< offloaded fraction of these states, unless the tier is Device
  OffloadTier params_tier = OffloadTier::Device;  ///< offload tier of ZeRO 3's weights
  OffloadTier activations_tier = OffloadTier::Device;
  /// If true, consecutive ranks are in the same pipeline instead of the same data-parallel group. This program itself
  /// never uses such layouts.
  bool is_pipeline_innermost = false;

  i64 world_size() const { return ranks_per_sample() * dp; }
  /// Returns the number of ranks that share one sample.
  i64 ranks_per_sample() const { return tp * cp * pp; }
  i64 expert_tp() const { return etp > 0 ? etp : tp; }
  i64 expert_dp() const { return world_size() / (pp * ep * expert_tp()); }
  /// Returns the number of consecutive context-parallel ranks that exchange heads.
  i64 cp_heads() const {
    if (cp_comm_type == CpCommType::A2a) return cp;
    return cp_comm_type == CpCommType::A2aP2p && !cp_hierarchy.empty() ? cp_hierarchy[0] : 1;
  }
  /// Returns the microbatches of one rank in one step.
  i64 microbatches(i64 global_batch_size) const { return global_batch_size / (micro_batch_size * dp); }
  /// Returns the pipeline schedule of a step with this number of microbatches.
  Schedule make_schedule(i64 microbatches) const {
    const Schedule passes =
        mcpp::make_schedule(schedule, static_cast<int>(pp), static_cast<int>(microbatches), static_cast<int>(chunks));
    return overlap_moe_expert_parallel_comm ? combine_passes(passes) : passes;
  }
  /// Returns every reason why no such schedule exists (mcpp::schedule_conflicts).
  std::vector<std::string> schedule_conflicts(i64 microbatches) const {
    return mcpp::schedule_conflicts(schedule, static_cast<int>(pp), static_cast<int>(chunks),
                                    static_cast<int>(microbatches));
  }
  StageMap stage_map() const {
    return {.ranks = static_cast<int>(pp),
            .chunks_per_rank = static_cast<int>(chunks),
            .placement = row_of(schedule).placement};
  }
  /// Returns the position in the pipeline of the rank with the output layer.
  int output_rank() const { return stage_map().rank_of(stage_map().stages() - 1); }

  RankGroup tp_group() const { return {.ranks = tp, .stride = 1}; }
  RankGroup cp_group() const { return {.ranks = cp, .stride = tp}; }
  /// Return the group of consecutive cp ranks that exchange heads, and the group of ranks at the same position of each
  /// such group, which form a ring or gather keys.
  RankGroup heads_group() const { return {.ranks = cp_heads(), .stride = tp}; }
  RankGroup keys_group() const { return {.ranks = cp / cp_heads(), .stride = tp * cp_heads()}; }
  /// Returns the ranks among which ZeRO shards: consecutive along cp and dp, unless the pipeline is in between.
  RankGroup shard_group() const {
    return {.ranks = cp * dp / instances, .stride = is_pipeline_innermost && cp == 1 ? tp * pp : tp};
  }
  /// Returns the ranks of different instances that hold the same shard.
  RankGroup instance_group() const {
    return {.ranks = instances, .stride = shard_group().ranks * shard_group().stride};
  }
  bool has_secondary_shard() const { return node_ranks > 1 && zero_stage == 3; }
  /// Return the group of node_ranks consecutive ranks of shard_group(), and the group of ranks at the same position of
  /// each such group.
  RankGroup node_group() const { return {.ranks = node_ranks, .stride = shard_group().stride}; }
  RankGroup inter_node_group() const {
    return {.ranks = shard_group().ranks / node_ranks, .stride = shard_group().stride * node_ranks};
  }
  /// Returns the ranks that exchange tokens for experts.
  RankGroup exchange_group() const { return {.ranks = ep * expert_tp(), .stride = 1}; }
  /// Return the ranks of a node that exchange tokens, and ranks of different nodes, of which each sends a token once to
  /// each other node. Estimates assume one node if dispatch_node_ranks is 0.
  RankGroup node_exchange_group() const {
    const i64 ranks = exchange_group().ranks;
    return {.ranks = dispatch_node_ranks > 0 ? std::min(dispatch_node_ranks, ranks) : ranks, .stride = 1};
  }
  RankGroup inter_node_exchange_group() const {
    const i64 node = node_exchange_group().ranks;
    return {.ranks = (exchange_group().ranks + node - 1) / node, .stride = node};
  }
  /// Return shard_group() and instance_group() of the experts' parameters.
  RankGroup expert_shard_group() const { return {.ranks = expert_dp() / instances, .stride = ep * expert_tp()}; }
  RankGroup expert_instance_group() const {
    return {.ranks = instances, .stride = expert_shard_group().ranks * expert_shard_group().stride};
  }
  i64 pipeline_stride() const { return tp * cp * (is_pipeline_innermost ? 1 : dp); }

  /// Returns the fraction of the optimizer states that is offloaded.
  double effective_offloaded_fraction() const {
    return states_tier == OffloadTier::Device ? 0 : offloaded_state_fraction;
  }
  /// Returns true if anything is offloaded to `tier`.
  bool uses(OffloadTier tier) const { return states_tier == tier || params_tier == tier || activations_tier == tier; }
  /// Returns text like "tp 8 sp, cp 2, pp 4 interleaved x 2, dp 16 zero 1, micro batch 1, recompute full".
  std::string describe() const;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    model_fields(self, visit);
    data_fields(self, visit);
  }

  /// Implementation of fields().
  template <class Self, class Visitor>
  static void model_fields(Self& self, Visitor& visit) {
    visit("tensor_model_parallel_size", self.tp, "ranks that share each layer", between(1, 4096));
    visit("sequence_parallel", self.sequence_parallel,
          "tensor-parallel ranks also shard the sequence between layers: less memory, the same communication");
    visit("tp_comm_overlap", self.tp_comm_overlap,
          "tensor-parallel ranks communicate some rows of a linear layer while they compute others; without effect on "
          "layers in low precision");
    visit("context_parallel_size", self.cp, "ranks that share each sample, each with some of its positions",
          between(1, 4096));
    visit("cp_comm_type", self.cp_comm_type,
          "how context-parallel ranks exchange keys and values: p2p = ring, all_gather, a2a = exchange of heads for "
          "positions, a2a+p2p = a2a among neighbors and a ring between them");
    visit("hierarchical_context_parallel_sizes", self.cp_hierarchy,
          "with a2a+p2p: ranks that exchange heads (on one node), and members of the ring", between(1, 4096));
    visit(
        "expert_model_parallel_size", self.ep,
        "ranks over which the experts of a layer are distributed, among the tensor-, context- and data-parallel ranks",
        between(1, 4096));
    visit("expert_tensor_parallel_size", self.etp, "ranks that share each expert; 0 = tensor_model_parallel_size",
          between(0, 4096));
    visit("moe_token_dispatcher_type", self.dispatcher,
          "how tokens are sent to experts: alltoall = once for each expert, to its ranks, allgather = to all ranks, "
          "hierarchical = once to each node, and from there once to each rank");
    visit(
        "moe_dispatch_node_ranks", self.dispatch_node_ranks,
        "with hierarchical: number of consecutive ranks that form a node, such as the ranks that fast links join; 0 = "
        "the ranks of a host",
        between(0, 4096));
    visit("overlap_moe_expert_parallel_comm", self.overlap_moe_expert_parallel_comm,
          "exchange tokens of experts while the rank computes: a forward and a backward pass of different microbatches "
          "alternate, and weight gradients of experts follow the start of the exchange; bitwise identical");
    visit("pipeline_model_parallel_size", self.pp, "ranks over which the layers are distributed", between(1, 4096));
    visit("num_virtual_stages_per_pipeline_rank", self.chunks,
          str("model chunks on each pipeline rank: ", describe_min_chunks()), between(1, 4096));
    visit("pipeline_schedule", self.schedule, "order of forward and backward passes over the pipeline");
    visit("decoder_first_pipeline_num_layers", self.first_layers,
          "layers on the first pipeline rank; 0 = the same number as on the others", at_least(0));
    visit("decoder_last_pipeline_num_layers", self.last_layers,
          "layers on the last pipeline rank; 0 = the same number as on the others", at_least(0));
    visit(
        "pipeline_model_parallel_layout", self.stages,
        "explicit stages, such as \"Et*3|t*4|t*3L\": E embedding, t layer, m multi-token prediction, L output; instead "
        "of the number of layers on the first and last rank");
  }
  template <class Self, class Visitor>
  static void data_fields(Self& self, Visitor& visit) {
    visit("zero_stage", self.zero_stage,
          "what is sharded across data-parallel ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights",
          between(0, 3));
    visit("num_distributed_optimizer_instances", self.instances,
          "groups of data-parallel ranks, each with a full copy of what zero_stage shards (hybrid sharding)",
          at_least(1));
    visit("zero_hpz_partition_size", self.node_ranks,
          "size of groups of neighboring ranks inside a node: with zero_stage 3, they hold a secondary copy of the "
          "weights to gather from (hpZ); with zero_quantized_gradients or grad_reduce_dtype bf16, gradients are first "
          "summed within them; 1 = no groups",
          between(1, 4096));
    visit("zero_quantized_weights", self.formats.quantized_weights,
          "send weights as int8; all ranks compute with the quantized weights, so training is not bitwise identical");
    visit("fp8_param_gather", self.formats.fp8_param_gather,
          "with zero_stage 1, 2 and 3: send weights in fp8 that GEMMs round to fp8 in any case (recipes tensorwise and "
          "blockwise); bitwise identical");
    visit("zero_quantized_gradients", self.formats.quantized_gradients,
          "send gradients as int8 (accumulated in fp32); not bitwise identical");
    visit("grad_reduce_dtype", self.formats.grad_reduce_dtype,
          "with zero_stage 1, 2 and 3: type that gradients are rounded to, once, for communication; they are "
          "accumulated in fp32. bf16 is not bitwise identical");
    visit("power_sgd_rank", self.formats.power_sgd_rank,
          "with zero_stage 0 or 1: rank of the factors that approximate the summed gradients of linear layers "
          "(PowerSGD); the error is added to the next step's gradient; 0 = exact sums",
          between(0, 1024));
    visit("power_sgd_start_iter", self.power_sgd_start_iter,
          "with power_sgd_rank: number of initial iterations with exact sums", at_least(0));
    visit("ddp_bucket_size", self.bucket_size, "gradient elements that are reduced together; 0 = all", at_least(0));
    visit("overlap_grad_reduce", self.overlap_grad_reduce, "reduce gradients while the backward pass is running");
    visit("overlap_param_gather", self.overlap_param_gather, "gather weights before they are needed");
  }
};

}  // namespace mcpp
