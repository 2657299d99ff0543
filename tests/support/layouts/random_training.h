// Random training run over all features: a model, a layout, a schedule, ZeRO, recomputation, precision and an
// optimizer. A seed determines one run. Each choice is drawn by its own name, so that adding a choice leaves the other
// choices of a seed unchanged.
#pragma once
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "base/philox.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/cuda_graph_conflicts.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/model_provider.h"
#include "tests/support/build.h"
#include "tests/support/layouts/layout_run.h"

namespace mcpp::test {

class RandomTraining {
 public:
  explicit RandomTraining(u64 seed) : seed_(seed) {
    do {
      ++attempt_;
      draw_model();
      draw_layout();
      draw_batch();
      draw_low_precision();
    } while (!is_possible());
  }

  RunTask task() const {
    RunTask task = learnable_task(config_.model, dtype_);
    task.fp8 = config_.training.fp8;
    task.fp8_recipe = config_.training.fp8_recipe;
    task.low_precision = config_.training.low_precision;
    task.moe_fp8_dispatch = config_.training.moe_fp8_dispatch;
    task.optimizer = config_.optimizer;
    task.global_batch_size = config_.training.global_batch_size;
    task.micro_batch_size = config_.training.micro_batch_size;
    task.steps = 3;
    task.compares_executions = pick("compares_executions", {false, false, true});
    task.graph_warmup_steps = records_graphs() ? 1 : 0;
    if (flip("documents")) task.eod = 3;
    // Ranks have different numbers of targets, and some samples have none.
    if (pick("loss_mask", {false, false, true})) {
      task.has_loss = [seed = seed_](i64 sample, i64 position) {
        const u64 bits = philox_key(seed, "has_loss", static_cast<u64>(sample));
        return bits % 3 != 0 && (bits >> (8 + position % 40)) % 2 == 0;
      };
    }
    // The learning rate is small, because a jump of the gradient norm amplifies rounding a thousandfold, so that all
    // correct layouts differ.
    task.lr = [](i64) { return 3e-4; };
    return task;
  }
  std::set<GemmRecipe> recipes() const { return config_.training.recipes(); }
  /// Returns the same run with different offloading, with which it may continue after a save.
  RunTask task_moved() const {
    RunTask moved = task();
    moved.graph_warmup_steps = 0;  // activations may move to a disk, which graphs do not support
    OptimizerConfig& o = moved.optimizer;
    o.offload = pick("offload_moved", kTiers);
    if (config_.parallel.zero_stage == 3) o.offload_params = pick("offload_params_moved", kTiers);
    o.offload_fraction = pick("offload_fraction_moved", {1.0, 0.3});
    o.offload_segment_size = pick<i64>("offload_segment_size_moved", {256, 5000});
    o.store_param_remainders = dtype_ == DType::BF16 && flip("store_param_remainders_moved") && !o.stochastic_rounding;
    moved.async_save = flip("async_save_moved") && config_.parallel.formats.power_sgd_rank == 0;
    return moved;
  }
  RunLayout layout() const { return {"random", layout_of(config_, config_.parallel.ranks_per_sample() * dp_)}; }
  /// Returns the settings that differ from the defaults, for debugging.
  std::string text() const {
    return str("seed ", seed_, ": ", layout().ranks(), " ranks, ", name_of(dtype_), "\n", print_config(config_));
  }

 private:
  static constexpr std::initializer_list<OffloadTier> kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};

  template <class T>
  T pick(const char* what, std::initializer_list<T> values) const {
    const u64 number = philox_key(seed_, what, static_cast<u64>(attempt_)) >> 20;
    return values.begin()[number % values.size()];
  }
  bool flip(const char* what) const { return pick(what, {false, true}); }

  void draw_model() {
    ModelConfig& m = config_.model;
    m = {};
    m.hidden_size = 32;
    m.seq_length = 8;
    m.vocab_size = 29;
    m.make_vocab_size_divisible_by = 16;
    m.init_method_std = 0.1;
    m.num_layers = pick<i64>("num_layers", {4, 8, 3, 6});
    m.ffn_hidden_size = pick<i64>("ffn_hidden_size", {40, 64});
    m.num_attention_heads = pick<i64>("num_attention_heads", {4, 8});
    m.num_query_groups = pick<i64>("num_query_groups", {0, 1, 2, 4});
    m.position_embedding_type = pick("position_embedding_type", {PositionEmbedding::LearnedAbsolute,
                                                                 PositionEmbedding::Rope, PositionEmbedding::None});
    m.rotary_percent = pick("rotary_percent", {0.5, 1.0});
    if (m.position_embedding_type == PositionEmbedding::Rope) {
      m.rope_scaling.type = pick("rope_scaling_type", {RopeScalingType::None, RopeScalingType::Linear,
                                                       RopeScalingType::Yarn, RopeScalingType::Llama3});
      if (m.rope_scaling.type != RopeScalingType::None) m.rope_scaling.factor = 4;
    }
    // A window of one key is excluded: then nothing depends on queries and keys, and AdamW amplifies the rounding
    // errors of their gradients.
    const i64 window = pick<i64>("window_size", {0, 2, 3, 6}),
              skip_freq = pick<i64>("window_attn_skip_freq", {0, 2, 3});
    if (window > 0) m.window_size = {window - 1, 0};
    if (window > 0 && skip_freq > 0) m.window_attn_skip_freq = {skip_freq};
    m.normalization = pick("normalization", {Normalization::LayerNorm, Normalization::RMSNorm});
    m.activation_func = pick("activation_func", {ActivationFunction::Gelu, ActivationFunction::GeluErf,
                                                 ActivationFunction::SwiGLU, ActivationFunction::SquaredReLU});
    if (m.activation_func == ActivationFunction::SwiGLU && flip("geglu")) m.activation_func = ActivationFunction::GeGLU;
    if (m.activation_func == ActivationFunction::SwiGLU && flip("quick_geglu"))
      m.activation_func = ActivationFunction::QuickGeGLU;
    if (m.is_gated()) {
      m.activation_func_clamp_value = pick("activation_func_clamp_value", {0.0, 0.0, 2.0});
      m.glu_linear_offset = pick("glu_linear_offset", {0.0, 0.0, 1.0});
    }
    m.add_bias_linear = flip("add_bias_linear");
    m.add_qkv_bias = flip("add_qkv_bias");
    m.untie_embeddings_and_output_weights = flip("untie_embeddings_and_output_weights");
    m.hidden_dropout = pick("hidden_dropout", {0.0, 0.1});
    m.attention_dropout = pick("attention_dropout", {0.0, 0.1});
    dtype_ = pick("dtype", {DType::F64, DType::F64, DType::F32, DType::F32, DType::BF16, DType::F16});
    draw_variant();
    draw_latent_attention();
    draw_experts();
    draw_layer_differences();
    draw_mtp_branches();
    config_.optimizer = {};
    config_.optimizer.optimizer = pick("optimizer", {OptimizerKind::Adam, OptimizerKind::Sgd});
    config_.optimizer.clip_grad = pick("clip_grad", {1.0, 0.0});
    config_.optimizer.initial_loss_scale = 0x1p12;  // for fp16; small enough that no step is skipped
    config_.optimizer.offload =
        pick("offload", {OffloadTier::Device, OffloadTier::Device, OffloadTier::Host, OffloadTier::File});
    // Used only with ZeRO 3, which is drawn later.
    config_.optimizer.offload_params =
        pick("offload_params", {OffloadTier::Device, OffloadTier::Device, OffloadTier::Host, OffloadTier::File});
    config_.optimizer.store_param_remainders = dtype_ == DType::BF16 && flip("store_param_remainders");
    config_.optimizer.offload_fraction = pick("offload_fraction", {1.0, 0.5});
    config_.optimizer.offload_segment_size = pick<i64>("offload_segment_size", {256, 1000, i64{1} << 22});
  }

  /// Draws features that only some families have.
  void draw_variant() {
    ModelConfig& m = config_.model;
    // Norms after branches are excluded in low-precision types: their divisor is small at first, which amplifies
    // rounding.
    m.norm_position =
        is_low_precision(dtype_)
            ? NormPosition::Pre
            : pick("norm_position", {NormPosition::Pre, NormPosition::Pre, NormPosition::Post, NormPosition::Both});
    // A bias of keys without rotation has no effect: AdamW amplifies the rounding errors of its gradient.
    const bool keys_count =
        m.normalization == Normalization::RMSNorm || m.position_embedding_type == PositionEmbedding::Rope;
    m.apply_layernorm_1p = flip("apply_layernorm_1p");
    m.qk_layernorm = keys_count && flip("qk_layernorm");
    m.qk_layernorm_all_heads =
        m.qk_layernorm && m.normalization == Normalization::RMSNorm && flip("qk_layernorm_all_heads");
    if (const i64 freq = pick<i64>("attention_output_gate", {0, 0, 1, 2}); freq > 0) m.attention_output_gate = {freq};
    if (m.position_embedding_type != PositionEmbedding::LearnedAbsolute)
      m.mtp_num_layers = pick<i64>("mtp_num_layers", {0, 0, 1, 2});
    m.softmax_type = pick("softmax_type",
                          {SoftmaxType::Vanilla, SoftmaxType::Vanilla, SoftmaxType::OffByOne, SoftmaxType::Learnable});
    m.use_parallel_residual = flip("use_parallel_residual");
    m.query_pre_attn_scalar = pick("query_pre_attn_scalar", {0.0, 0.0, 2.0});
    m.attn_logit_softcapping = pick("attn_logit_softcapping", {0.0, 0.0, 1.0});
    m.final_logit_softcapping = pick("final_logit_softcapping", {0.0, 0.0, 2.0});
    m.embedding_multiplier = pick("embedding_multiplier", {1.0, 1.0, 3.0});
    if (m.position_embedding_type == PositionEmbedding::Rope && !m.window_size.empty())
      m.rope_local_base_freq = pick("rope_local_base_freq", {0.0, 100.0});
  }

  /// Draws multi-latent attention, which replaces keys of other kinds of attention.
  void draw_latent_attention() {
    ModelConfig& m = config_.model;
    if (m.position_embedding_type == PositionEmbedding::LearnedAbsolute ||
        !pick("multi_latent_attention", {false, false, true}))
      return;
    m.mla.is_used = true;
    m.softmax_type = SoftmaxType::Vanilla;
    m.mla.q_lora_rank = pick<i64>("q_lora_rank", {0, 12, 24});
    m.mla.kv_lora_rank = pick<i64>("kv_lora_rank", {10, 16});
    m.mla.qk_head_dim = pick<i64>("qk_head_dim", {4, 8});
    m.mla.qk_pos_emb_head_dim = 4;
    m.mla.v_head_dim = pick<i64>("v_head_dim", {6, 8, 14});
    m.num_query_groups = 0, m.rotary_percent = 1, m.rope_local_base_freq = 0;
    m.qk_layernorm = m.qk_layernorm_all_heads = m.add_qkv_bias = false;
    m.attention_output_gate.clear();
    if (m.rope_scaling.type == RopeScalingType::Yarn) m.rope_scaling.mscale_all_dim = 1;
  }

  /// Draws sizes and branches that differ by layer.
  void draw_layer_differences() {
    ModelConfig& m = config_.model;
    const auto list = [&](i64 first, i64 second) {
      std::vector<i64> values;
      for (i64 layer = 0; layer < m.num_layers; ++layer) values.push_back(layer % 2 == 0 ? first : second);
      return PerLayer(std::move(values));
    };
    if (flip("ffn_hidden_size_list") && (m.moe.num_experts == 0 || m.moe.ffn_hidden_size > 0))
      m.ffn_hidden_size = list(m.ffn_hidden_size.first(), 48);
    if (!m.mla.is_used && flip("num_query_groups_list")) m.num_query_groups = list(m.query_groups(0), 4);
    if (m.position_embedding_type == PositionEmbedding::Rope && m.normalization == Normalization::RMSNorm)
      if (const i64 freq = pick<i64>("no_rope_freq", {0, 2, 3}); freq > 0) m.no_rope_freq = {freq};
    if (m.norm_position == NormPosition::Pre)
      if (const i64 freq = pick<i64>("post_norm_freq", {0, 0, 2}); freq > 0) m.post_norm_freq = {freq};
    if (!m.mla.is_used && !m.no_rope_freq.empty() && flip("attn_temperature_tuning")) {
      m.attn_temperature_tuning = true;
      m.attn_temperature_floor_scale = 4, m.attn_temperature_scale = 0.5;
    }
    if (!m.mla.is_used && m.position_embedding_type == PositionEmbedding::Rope) {
      m.qk_l2_norm = flip("qk_l2_norm");
      if (m.window_size.empty()) m.attention_chunk_size = pick<i64>("attention_chunk_size", {0, 0, 3, 8});
    }
    if (m.use_parallel_residual || pick<i64>("hybrid_layer_pattern", {0, 1, 2}) > 0) {
      if (const i64 freq = pick<i64>("linear_attention_freq", {0, 0, 2, 3}); freq > 0)
        m.recurrent.linear_attention_freq = {freq}, draw_linear_attention();
      if (!m.recurrent.linear_attention_freq.empty() && flip("kimi_delta_attention"))
        m.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
      return;
    }
    std::string branches = m.moe.num_experts > 0 ? "*E-" : "*-";
    if (flip("mamba") && m.num_layers > 3) branches += "M", draw_mamba();
    if (flip("delta_net") && m.num_layers > 4)
      branches += flip("kimi_delta_attention") ? "K" : "G", draw_linear_attention();
    for (i64 layer = 0; layer < m.num_layers; ++layer)
      m.hybrid_layer_pattern += branches[static_cast<std::size_t>(layer) % branches.size()];
    if (m.moe.num_experts > 0) m.moe.layer_freq = {1};
  }

  /// Draws the branches of multi-token prediction from the branches of the model.
  void draw_mtp_branches() {
    ModelConfig& m = config_.model;
    if (m.mtp_num_layers == 0 || !flip("mtp_hybrid_layer_pattern")) return;
    std::string mixers = "*", feed_forwards = "-";
    if (m.hybrid_layer_pattern.find('M') != std::string::npos) mixers += "M";
    for (const char mixer : {'G', 'K'}) {
      const bool is_selected =
          !m.recurrent.linear_attention_freq.empty() &&
          (m.recurrent.linear_attention_type == LinearAttentionType::GatedDeltaNet) == (mixer == 'G');
      if (is_selected || m.hybrid_layer_pattern.find(mixer) != std::string::npos) mixers += mixer;
    }
    if (m.moe.num_experts > 0) feed_forwards += "E";
    const auto draw = [&](const char* what, const std::string& from) {
      return from.substr(pick<std::size_t>(what, {0, 1, 2, 3}) % from.size(), 1);
    };
    const i64 part = m.use_parallel_residual ? 0 : pick<i64>("mtp_branches", {0, 0, 0, 1, 2});
    if (part != 1) m.mtp_hybrid_layer_pattern = draw("mtp_mixer", mixers);
    if (part != 2) m.mtp_hybrid_layer_pattern += draw("mtp_feed_forward", feed_forwards);
  }

  /// Draws the options of linear attention. Uses a large epsilon, because the inputs of the norms after scans are so
  /// small that a small epsilon would amplify rounding.
  void draw_linear_attention() {
    RecurrentConfig& r = config_.model.recurrent;
    config_.model.norm_epsilon = 1e-2;
    r.linear_num_key_heads = pick<i64>("linear_num_key_heads", {4, 8});
    r.linear_num_value_heads = 8;
    r.linear_key_head_dim = pick<i64>("linear_key_head_dim", {4, 6});
    r.linear_value_head_dim = pick<i64>("linear_value_head_dim", {4, 8});
    r.linear_conv_kernel_dim = pick<i64>("linear_conv_kernel_dim", {4, 2});
    r.linear_allow_neg_eigval = flip("linear_allow_neg_eigval");
    if (flip("linear_norm_epsilon")) r.linear_norm_epsilon = 2e-2;
  }
  void draw_mamba() {
    RecurrentConfig& r = config_.model.recurrent;
    config_.model.norm_epsilon = 1e-2;
    r.mamba_state_dim = pick<i64>("mamba_state_dim", {4, 6});
    r.mamba_num_groups = pick<i64>("mamba_num_groups", {4, 8});
    r.mamba_head_dim = 4;
  }

  /// Draws experts, except in fp16. In bf16 they are chosen at random: if rounding routes a token to a different
  /// expert, all correct layouts differ.
  void draw_experts() {
    ModelConfig& m = config_.model;
    if (dtype_ == DType::F16 || !flip("experts")) return;
    m.moe.num_experts = pick<i64>("num_experts", {4, 8});
    m.moe.router_topk = pick<i64>("moe_router_topk", {1, 2, 3});
    m.moe.router_score_function = pick("moe_router_score_function", {RouterScore::Softmax, RouterScore::Sigmoid});
    const bool sigmoid = m.moe.router_score_function == RouterScore::Sigmoid;
    if (sigmoid && flip("sqrtsoftplus")) m.moe.router_score_function = RouterScore::SqrtSoftplus;
    m.moe.router_dtype = pick("moe_router_dtype", {RouterDType::Fp32, RouterDType::Fp32, RouterDType::Fp64});
    m.moe.latent_size = pick<i64>("moe_latent_size", {0, 0, 12, 40});
    m.moe.router_pre_softmax = !sigmoid && (m.moe.router_topk == 1 || flip("moe_router_pre_softmax"));
    m.moe.router_enable_expert_bias = sigmoid && flip("moe_router_enable_expert_bias");
    if (m.moe.router_topk > 1 && flip("moe_router_num_groups")) m.moe.router_num_groups = m.moe.router_group_topk = 2;
    m.moe.layer_freq = {pick<i64>("moe_layer_freq", {1, 1, 2})};
    m.moe.router_add_bias = flip("moe_router_add_bias");
    m.moe.apply_probs_on_input = m.moe.router_topk == 1 && flip("moe_apply_probs_on_input");
    m.moe.ffn_hidden_size = pick<i64>("moe_ffn_hidden_size", {0, 24});
    m.moe.router_load_balancing_type =
        pick("moe_router_load_balancing_type",
             {LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss});
    m.moe.aux_loss_coeff = pick("moe_aux_loss_coeff", {0.0, 0.01});
    if (pick("moe_aux_losses", {false, false, true})) {
      m.moe.router_load_balancing_type =
          OneOrList(std::vector{LoadBalancing::GlobalAuxLoss, LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss});
      m.moe.aux_loss_coeff = OneOrList(std::vector{0.01, 0.0, 0.005});
    }
    m.moe.z_loss_coeff = pick("moe_z_loss_coeff", {0.0, 1e-3});
    m.moe.expert_capacity_factor = pick("moe_expert_capacity_factor", {0.0, 0.0, 1.0});
    if (m.moe.expert_capacity_factor > 0) {
      m.moe.expert_capacity_factor = pick("moe_capacity", {0.75, 1.0, 1.5});
      m.moe.token_drop_policy = pick("moe_token_drop_policy", {TokenDropPolicy::Probs, TokenDropPolicy::Position});
      if (dtype_ == DType::BF16) m.moe.token_drop_policy = TokenDropPolicy::Position;
      m.moe.pad_expert_input_to_capacity = flip("moe_pad_expert_input_to_capacity");
    }
    m.moe.input_jitter_eps = pick("moe_input_jitter_eps", {0.0, 0.0, 0.01});
    m.moe.router_force_load_balancing =
        dtype_ == DType::BF16 || pick("moe_router_force_load_balancing", {false, false, false, true});
    m.moe.shared_expert_intermediate_size = pick<i64>("moe_shared_expert_intermediate_size", {0, 0, 16});
    m.moe.shared_expert_gate = m.moe.shared_expert_intermediate_size > 0 && flip("moe_shared_expert_gate");
  }

  void draw_layout() {
    ParallelConfig& p = config_.parallel;
    p = {};
    p.tp = pick<i64>("tp", {1, 2, 2, 4});
    p.pp = pick<i64>("pp", {1, 1, 2, 4});
    dp_ = pick<i64>("dp", {1, 1, 2, 4});
    p.sequence_parallel = p.tp > 1 && flip("sequence_parallel");
    p.tp_comm_overlap = p.tp > 1 && flip("tp_comm_overlap");
    p.cp = pick<i64>("cp", {1, 1, 2, 4});
    p.cp_comm_type =
        pick("cp_comm_type", {CpCommType::P2p, CpCommType::AllGather, CpCommType::A2a, CpCommType::A2aP2p});
    p.cp_hierarchy.clear();
    if (p.cp_comm_type == CpCommType::A2aP2p) p.cp_hierarchy = {std::min<i64>(2, p.cp), p.cp / 2};
    p.schedule = pick("pipeline_schedule", {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::Interleaved,
                                            ScheduleKind::ZbH1, ScheduleKind::ZbV, ScheduleKind::DualPipeV});
    p.chunks = row_of(p.schedule).min_chunks;
    if (p.pp > 1 && flip("uneven")) p.first_layers = pick<i64>("decoder_first_pipeline_num_layers", {1, 2});
    draw_prediction_stage();
    if (config_.model.moe.num_experts > 0) {
      p.ep = pick<i64>("ep", {1, 2, 2, 4});
      p.etp = pick<i64>("etp", {0, 1, 1, 2});
      p.dispatcher = pick("moe_token_dispatcher_type", {TokenDispatcherType::AllToAll, TokenDispatcherType::AllGather,
                                                        TokenDispatcherType::Hierarchical});
      p.dispatch_node_ranks = 0;
      if (p.dispatcher == TokenDispatcherType::Hierarchical)
        p.dispatch_node_ranks = pick<i64>("moe_dispatch_node_ranks", {0, 1, 2, 2, 3});
    }
    p.zero_stage = pick<i64>("zero_stage", {0, 1, 2, 3});
    if (p.zero_stage < 3) config_.optimizer.offload_params = OffloadTier::Device;
    p.instances = pick<i64>("num_distributed_optimizer_instances", {1, 1, 2});
    p.bucket_size = pick<i64>("ddp_bucket_size", {2000, 0});
    p.overlap_grad_reduce = p.overlap_param_gather = flip("overlap");
    draw_communication();
    draw_states();
  }

  /// Draws the overlap of the exchange of tokens, if the layout allows it.
  void draw_expert_overlap() {
    ParallelConfig& p = config_.parallel;
    const bool has_exchange = config_.model.moe.num_experts > 0 && p.ep * p.expert_tp() > 1;
    if (built_with_cuda() || !has_exchange || p.zero_stage == 3 || !can_combine_passes(p.schedule)) return;
    if (config_.training.offload_activations != OffloadTier::Device) return;
    p.overlap_moe_expert_parallel_comm = flip("overlap_moe_expert_parallel_comm");
  }

  /// Draws a stage of multi-token prediction without the output: alone or after layers.
  void draw_prediction_stage() {
    ParallelConfig& p = config_.parallel;
    const i64 stages = p.pp * p.chunks, mtp_layers = config_.model.mtp_num_layers;
    const bool can_separate = config_.model.untie_embeddings_and_output_weights && mtp_layers > 0 && stages > 1;
    if (!can_separate || !flip("prediction_stage")) return;
    p.first_layers = 0;
    const i64 with_layers = stages > 2 && flip("prediction_alone") ? stages - 2 : stages - 1;
    for (i64 stage = 0; stage < with_layers; ++stage) {
      const i64 first = config_.model.num_layers * stage / with_layers,
                end = config_.model.num_layers * (stage + 1) / with_layers;
      p.stages += (stage == 0 ? "E" : "|") + std::string(static_cast<std::size_t>(end - first), 't');
    }
    if (with_layers < stages - 1) p.stages += "|";
    p.stages += std::string(static_cast<std::size_t>(mtp_layers), 'm') + "|L";
  }

  /// Coefficients that are steep at 0 amplify rounding errors of small singular values, so they are drawn in fp64 only.
  void draw_muon() {
    OptimizerConfig& o = config_.optimizer;
    o.optimizer = OptimizerKind::Muon;
    o.muon_split_qkv = pick("muon_split_qkv", {true, true, false});
    o.muon_split_heads = o.muon_split_qkv && flip("muon_split_heads");
    if (dtype_ != DType::F64) return;
    o.muon_coefficient_type =
        pick("muon_coefficient_type", {MuonCoefficientType::Simple, MuonCoefficientType::Quintic,
                                       MuonCoefficientType::PolarExpress, MuonCoefficientType::Cans});
  }

  /// Draws formats of the optimizer states. In fp64 everything is kept in full precision, to tell rounding from errors.
  void draw_states() {
    OptimizerConfig& o = config_.optimizer;
    if (pick("muon", {false, false, true})) draw_muon();
    if (pick("param_group", {false, false, true})) {
      o.param_group = {
          {.match = OneOrList<std::string>("embedding.*"), .lr_mult = 0.5, .wd_mult = 0},
          {.match = OneOrList<std::string>("*.bias"), .lr_mult = pick("bias_lr_mult", {0.0, 2.0}), .wd_mult = 1},
          {.match = OneOrList<std::string>("decoder.layers.1.*"), .lr_mult = 1.5}};
    }
    draw_tuning();
    const ModelConfig& m = config_.model;
    o.qk_clip = !m.qk_layernorm && !m.qk_l2_norm && m.attn_logit_softcapping == 0 && flip("qk_clip");
    if (o.qk_clip) o.qk_clip_threshold = 0.05;
    o.stochastic_rounding = dtype_ == DType::BF16 && !o.store_param_remainders && flip("stochastic_rounding");
    if (!o.stochastic_rounding && flip("ema_decay")) {
      o.ema_decay = 0.5;
      o.ema_start = pick<i64>("ema_start", {0, 1});
      o.ema_interval = pick<i64>("ema_interval", {1, 2});
    }
    if (dtype_ == DType::F64) return;
    const auto form = [this](const char* what) {
      return pick(what, {StateDType::Fp32, StateDType::Fp32, StateDType::Bf16, StateDType::Uint8, StateDType::Fp8E4m3});
    };
    o.exp_avg_dtype = form("exp_avg_dtype");
    if (o.optimizer != OptimizerKind::Sgd) o.exp_avg_sq_dtype = form("exp_avg_sq_dtype");
    // Norms after branches amplify the rounding of bf16 gradients, too.
    const bool may_round = config_.model.norm_position == NormPosition::Pre && o.can_round_gradients();
    if (config_.parallel.zero_stage >= 2 && may_round)
      o.main_grads_dtype = pick("main_grads_dtype", {GradDType::Fp32, GradDType::Bf16});
  }

  /// Draws a z-loss and, if the model and the optimizer support it, the maximal update parametrization.
  void draw_tuning() {
    config_.model.output_z_loss_coeff = pick("output_z_loss_coeff", {0.0, 0.0, 1e-3});
    const MupConfig mup{.is_used = true, .base_hidden_size = pick<i64>("mup_base_hidden_size", {8, 20})};
    std::vector<std::string> conflicts;
    mup.add_conflicts(config_.model, conflicts);
    if (!pick("use_mup", {false, false, true}) || !conflicts.empty()) return;
    if (config_.optimizer.optimizer != OptimizerKind::Sgd) config_.model.mup = mup;
  }

  /// Draws communication formats. Compression is excluded with experts: if rounding routes a token to a different
  /// expert, losses jump.
  void draw_communication() {
    ParallelConfig& p = config_.parallel;
    const i64 shards = dp_ * p.cp / p.instances;
    const bool may_pack = p.zero_stage > 0 && config_.model.moe.num_experts == 0;
    p.formats.quantized_weights = may_pack && pick("zero_quantized_weights", {false, false, true});
    p.formats.quantized_gradients = may_pack && pick("zero_quantized_gradients", {false, false, true});
    const bool may_factorize = p.zero_stage < 2 && !p.formats.quantized_gradients && dtype_ != DType::F16 &&
                               config_.model.moe.num_experts == 0;
    p.formats.power_sgd_rank = may_factorize ? pick<i64>("power_sgd_rank", {0, 0, 0, 2}) : 0;
    if (may_pack && !p.formats.quantized_gradients && p.formats.power_sgd_rank == 0)
      p.formats.grad_reduce_dtype = pick("grad_reduce_dtype", {GradDType::Fp32, GradDType::Bf16});
    const bool sums_in_steps = p.formats.grad_reduce_format() != GradReduceFormat::Full;
    const bool has_nodes = (p.zero_stage == 3 || sums_in_steps) && shards > 2 && shards % 2 == 0;
    p.node_ranks = has_nodes ? pick<i64>("zero_hpz_partition_size", {1, 2}) : 1;
  }

  void draw_batch() {
    TrainingConfig& t = config_.training;
    t = {};
    t.train_iters = 1;
    t.precision = precision_of(dtype_);
    if (dtype_ == DType::BF16) t.fp8 = pick("fp8", {Fp8::None, Fp8::E4m3, Fp8::Hybrid});
    t.micro_batch_size = pick<i64>("micro_batch_size", {1, 2});
    t.global_batch_size = t.micro_batch_size * dp_ * pick<i64>("microbatches", {1, 2, 4});
    t.recompute_granularity = pick("recompute_granularity", {RecomputeGranularity::None, RecomputeGranularity::Full,
                                                             RecomputeGranularity::Selective});
    t.recompute_method = pick("recompute_method", {RecomputeMethod::Uniform, RecomputeMethod::Block});
    t.recompute_num_layers = pick<i64>("recompute_num_layers", {1, 2, 3});
    const ParallelConfig& p = config_.parallel;
    t.distribute_saved_activations = t.recompute_granularity == RecomputeGranularity::Full && p.tp > 1 &&
                                     !p.sequence_parallel && flip("distribute_saved_activations");
    t.offload_activations =
        pick("offload_activations", {OffloadTier::Device, OffloadTier::Device, OffloadTier::Host, OffloadTier::File});
    t.recompute_modules.clear();
    for (const char* module : {"core_attn", "layernorm", "mlp_act", "moe_act"})
      if (flip(module)) t.recompute_modules.emplace_back(module);
    draw_expert_overlap();
  }

  /// Draws recipes of linear layers. Recipes whose blocks would straddle ranks are not used.
  void draw_low_precision() {
    TrainingConfig& t = config_.training;
    if (dtype_ != DType::BF16 || !is_possible()) return;
    const auto is_supported = [&] { return low_precision_problems(config_, static_cast<int>(ranks())).empty(); };
    if (t.fp8 != Fp8::None)
      t.fp8_recipe = pick("fp8_recipe", {Fp8RecipeName::Tensorwise, Fp8RecipeName::Delayed, Fp8RecipeName::Blockwise,
                                         Fp8RecipeName::Mxfp8});
    if (!is_supported()) t.fp8_recipe = Fp8RecipeName::Tensorwise;
    const auto add = [&](const char* modules, GemmRecipe recipe) {
      t.low_precision.push_back({.modules = OneOrList<std::string>(modules), .recipe = recipe});
      if (!is_supported()) t.low_precision.back().wgrad = PassRecipeName::Bf16;
      if (!is_supported()) t.low_precision.pop_back();
    };
    const auto recipe = [&](const char* modules, std::initializer_list<GemmRecipe> recipes) {
      return pick(str("recipe of ", modules).c_str(), recipes);
    };
    constexpr const char* kExperts = "*.experts.*";
    if (flip(kExperts)) add(kExperts, recipe(kExperts, {GemmRecipe::Blockwise, GemmRecipe::Mxfp8}));
    for (const char* modules : {"output_layer", "*.linear_proj", "*.linear_fc2"})
      if (flip(modules))
        add(modules, recipe(modules, {GemmRecipe::Delayed, GemmRecipe::Blockwise, GemmRecipe::Mxfp8, GemmRecipe::Nvfp4,
                                      GemmRecipe::Bf16}));
    t.moe_fp8_dispatch = !t.low_precision.empty() && flip("moe_fp8_dispatch");
    if (!is_supported()) t.moe_fp8_dispatch = false;
    ParallelConfig& p = config_.parallel;
    const std::set<GemmRecipe> recipes = t.recipes();
    if (p.zero_stage > 0 && !p.formats.quantized_weights &&
        (recipes.contains(GemmRecipe::Tensorwise) || recipes.contains(GemmRecipe::Blockwise)))
      p.formats.fp8_param_gather = flip("fp8_param_gather");
  }

  /// Draws CUDA graphs on GPUs, if the configuration allows them.
  bool records_graphs() const {
    Config config = config_;
    config.device.device = DeviceType::Cuda;
    config.device.cuda_graph_impl = CudaGraphImpl::Local;
    std::vector<std::string> conflicts;
    cuda_graph_conflicts(config, conflicts);
    return runs_on_gpus() && conflicts.empty() && flip("cuda_graphs");
  }

  i64 ranks() const { return config_.parallel.ranks_per_sample() * dp_; }

  bool is_possible() const {
    const ParallelConfig& p = config_.parallel;
    const i64 ranks = p.tp * p.cp * p.pp * dp_;
    if (ranks < 2 || ranks > 8) return false;
    return config_.model.conflicts().empty() && layout_problems(config_, static_cast<int>(ranks)).empty();
  }

  u64 seed_;
  int attempt_ = 0;
  Config config_;
  DType dtype_ = DType::F32;
  i64 dp_ = 1;
};

}  // namespace mcpp::test
