#include "megatron_cpp/config/foreign_names.h"

#include <algorithm>

namespace mcpp {
namespace {

struct ForeignName {
  std::string_view foreign, native;
};

constexpr ForeignName kNames[]{
    {"n_layer", "model.num_layers"},
    {"n_layers", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"n_embd", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"n_heads", "model.num_attention_heads"},
    {"n_kv_heads", "model.num_query_groups"},
    {"num_key_value_heads", "model.num_query_groups"},
    {"group_query_attention", "model.num_query_groups"},
    {"head_dim", "model.kv_channels"},
    {"n_inner", "model.ffn_hidden_size"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"block_size", "model.seq_length"},
    {"max_seq_len", "model.seq_length"},
    {"n_positions", "model.max_position_embeddings"},
    {"hidden_act", "model.activation_func"},
    {"activation_function", "model.activation_func"},
    {"hidden_activation", "model.activation_func"},
    {"swiglu", "model.activation_func"},
    {"rope_theta", "model.rotary_base"},
    {"rotary_emb_base", "model.rotary_base"},
    {"rotary_pct", "model.rotary_percent"},
    {"partial_rotary_factor", "model.rotary_percent"},
    {"rope_type", "model.rope_scaling_type"},
    {"rope_scaling", "model.rope_scaling_type"},
    {"use_rope_scaling", "model.rope_scaling_type"},
    {"original_max_position_embeddings", "model.rope_scaling_original_max_position_embeddings"},
    {"low_freq_factor", "model.rope_scaling_low_freq_factor"},
    {"high_freq_factor", "model.rope_scaling_high_freq_factor"},
    {"rotary_seq_len_interpolation_factor", "model.rope_scaling_factor"},
    {"rotary_scaling_factor", "model.rope_scaling_factor"},
    {"yarn_rotary_scaling_factor", "model.rope_scaling_factor"},
    {"yarn_original_max_position_embeddings", "model.rope_scaling_original_max_position_embeddings"},
    {"yarn_beta_fast", "model.rope_scaling_beta_fast"},
    {"yarn_beta_slow", "model.rope_scaling_beta_slow"},
    {"yarn_mscale", "model.rope_scaling_mscale"},
    {"yarn_mscale_all_dim", "model.rope_scaling_mscale_all_dim"},
    {"yarn_correction_range_round_to_int", "model.rope_scaling_truncate"},
    {"sliding_window", "model.window_size"},
    {"no_rope_layers", "model.no_rope_freq"},
    {"no_rope_layer_interval", "model.no_rope_freq"},
    {"floor_scale", "model.attn_temperature_floor_scale"},
    {"attn_scale", "model.attn_temperature_scale"},
    {"swiglu_limit", "model.activation_func_clamp_value"},
    {"layer_types", "model.window_attn_skip_freq"},
    {"sliding_window_pattern", "model.window_attn_skip_freq"},
    {"rms_norm_eps", "model.norm_epsilon"},
    {"layer_norm_epsilon", "model.norm_epsilon"},
    {"layer_norm_eps", "model.norm_epsilon"},
    {"initializer_range", "model.init_method_std"},
    {"z_loss", "model.output_z_loss_coeff"},
    {"z_loss_multiplier", "model.output_z_loss_coeff"},
    {"softmax_auxiliary_loss", "model.output_z_loss_coeff"},
    {"scaling_recipe", "model.use_mup"},
    {"scaling_base_hidden_size", "model.mup_base_hidden_size"},
    {"mup_embedding_mult", "model.embedding_multiplier"},
    {"dropout", "model.hidden_dropout"},
    {"resid_pdrop", "model.hidden_dropout"},
    {"attn_pdrop", "model.attention_dropout"},
    {"qk_norm", "model.qk_layernorm"},
    {"use_qk_norm", "model.qk_layernorm"},
    {"layernorm_zero_centered_gamma", "model.apply_layernorm_1p"},
    {"bias", "model.add_bias_linear"},
    {"attention_bias", "model.add_qkv_bias"},
    {"disable_bias_linear", "model.add_bias_linear"},
    {"mlp_bias", "model.add_mlp_bias"},
    {"tie_word_embeddings", "model.untie_embeddings_and_output_weights"},
    {"max_steps", "training.train_iters"},
    {"max_iters", "training.train_iters"},
    {"num_train_steps", "training.train_iters"},
    {"num_train_epochs", "training.train_samples"},
    {"batch_size", "training.micro_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"gradient_accumulation_steps", "training.global_batch_size"},
    {"dtype", "training.precision"},
    {"torch_dtype", "training.precision"},
    {"bf16", "training.precision"},
    {"fp16", "training.precision"},
    {"fp8_format", "training.fp8"},
    {"fp4", "training.low_precision"},
    {"fp4_format", "training.low_precision"},
    {"fp4_recipe", "training.low_precision"},
    {"gradient_checkpointing", "training.recompute_granularity"},
    {"recompute_activations", "training.recompute_granularity"},
    {"partition_activations", "training.distribute_saved_activations"},
    {"number_checkpoints", "training.recompute_num_layers"},
    {"cpu_checkpointing", "training.offload_activations"},
    {"cpu_offloading", "training.offload_activations"},
    {"fine_grained_activation_offloading", "training.offload_activations"},
    {"offload_param", "optimizer.offload_params"},
    {"use_distributed_optimizer", "parallel.zero_stage"},
    {"grad_reduce_in_bf16", "parallel.grad_reduce_dtype"},
    {"grad_reduce_in_fp32", "parallel.grad_reduce_dtype"},
    {"communication_data_type", "parallel.grad_reduce_dtype"},
    {"mixed_precision_reduce", "parallel.grad_reduce_dtype"},
    {"reduce_dtype", "parallel.grad_reduce_dtype"},
    {"optimizer_cpu_offload", "optimizer.offload"},
    {"offload_optimizer", "optimizer.offload"},
    {"optimizer_offload_fraction", "optimizer.offload_fraction"},
    {"nvme_path", "optimizer.offload_folder"},
    {"eval_steps", "training.eval_interval"},
    {"learning_rate", "optimizer.lr"},
    {"min_learning_rate", "optimizer.min_lr"},
    {"lr_scheduler_type", "optimizer.lr_decay_style"},
    {"warmup_steps", "optimizer.lr_warmup_iters"},
    {"warmup_iters", "optimizer.lr_warmup_iters"},
    {"warmup_ratio", "optimizer.lr_warmup_fraction"},
    {"beta1", "optimizer.adam_beta1"},
    {"beta2", "optimizer.adam_beta2"},
    {"adam_epsilon", "optimizer.adam_eps"},
    {"grad_clip", "optimizer.clip_grad"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"output_dir", "checkpoint.save"},
    {"out_dir", "checkpoint.save"},
    {"save_steps", "checkpoint.save_interval"},
    {"save_total_limit", "checkpoint.keep_latest_k"},
    {"init_from", "checkpoint.load"},
    {"resume_from_checkpoint", "checkpoint.load"},
    {"logging_steps", "logging.log_interval"},
    {"num_moe_experts", "model.num_experts"},
    {"num_local_experts", "model.num_experts"},
    {"n_routed_experts", "model.num_experts"},
    {"num_experts_per_tok", "model.moe_router_topk"},
    {"moe_intermediate_size", "model.moe_ffn_hidden_size"},
    {"shared_expert_intermediate_size", "model.moe_shared_expert_intermediate_size"},
    {"n_shared_experts", "model.moe_shared_expert_intermediate_size"},
    {"moe_use_shared_expert_gate", "model.moe_shared_expert_gate"},
    {"decoder_sparse_step", "model.moe_layer_freq"},
    {"mlp_only_layers", "model.moe_layer_freq"},
    {"first_k_dense_replace", "model.moe_layer_freq"},
    {"norm_topk_prob", "model.moe_router_pre_softmax"},
    {"scoring_func", "model.moe_router_score_function"},
    {"n_group", "model.moe_router_num_groups"},
    {"topk_group", "model.moe_router_group_topk"},
    {"routed_scaling_factor", "model.moe_router_topk_scaling_factor"},
    {"router_aux_loss_coef", "model.moe_aux_loss_coeff"},
    {"router_z_loss_coef", "model.moe_z_loss_coeff"},
    {"router_jitter_noise", "model.moe_input_jitter_eps"},
    {"moe_capacity_factor", "model.moe_expert_capacity_factor"},
    {"moe_router_topk_limited_devices", "model.moe_router_group_topk"},
    {"moe_extended_tp", "parallel.expert_tensor_parallel_size"},
    {"expert_parallel_comm_backend", "parallel.moe_token_dispatcher_type"},
    {"moe_layer_recompute", "training.recompute_modules"},
    {"rerun_mode", "training.rerun_interval"},
    {"enable_cuda_graph", "device.cuda_graph_impl"},
};

struct FormerName {
  std::string_view former, present;
};

/// Former names as files, command lines and configurations stored in checkpoints spell them. Megatron-LM's log_progress
/// writes progress.txt; the other names were unclear.
constexpr FormerName kFormerNames[]{
    {"checkpoint.accept_change", "checkpoint.allow_changed_keys"},
    {"checkpoint.keep_last", "checkpoint.keep_latest_k"},
    {"checkpoint.local_keep_last", "checkpoint.local_keep_latest_k"},
    {"device.gemm_choice_file", "device.gemm_tuning_file"},
    {"fault_injection.at", "fault_injection.point"},
    {"logging.log_progress", "logging.show_progress"},
    {"logging.metrics", "logging.metrics_path"},
    {"device_hours", "mtbf_hours"},
    {"keep_last", "keep_latest_k"},
    {"other_numbers", "allow_lossy_comm"},
};

struct Advice {
  std::string_view foreign, text;
};

constexpr std::string_view kGrouped = "the experts of a rank are always multiplied in one grouped GEMM; remove it";
constexpr std::string_view kUpcycle =
    "megatron_cpp checkpoint upcycle converts a dense checkpoint to a mixture, with experts as wide as its MLP";
constexpr std::string_view kFp8Rows = "experts take any number of rows, in fp8 too; remove it";
constexpr std::string_view kNodeDispatch =
    "parallel.moe_token_dispatcher_type = \"hierarchical\" sends a token once to each node, as DeepEP and HybridEP do; "
    "remove it";
constexpr std::string_view kNumSms = "hierarchical dispatch is not a kernel that occupies SMs; remove it";
constexpr std::string_view kDecoupledLr =
    "for the embedding and the output layer, write [[optimizer.param_group]] with match = [\"embedding.*\", "
    "\"output_layer.*\"] and lr_mult = decoupled_lr / lr; min_lr is multiplied too";
constexpr Advice kAdvice[]{
    {"accumulate_allreduce_grads_in_fp32",
     "always true, unless optimizer.main_grads_dtype or parallel.grad_reduce_dtype is bf16; remove it"},
    {"reduce_scatter_with_fp32_accumulation",
     "sums over ranks are always in fp32, also with parallel.grad_reduce_dtype = \"bf16\"; remove it"},
    {"mup_width_mult", "derived from model.hidden_size and model.mup_base_hidden_size; remove it"},
    {"decoupled_lr", kDecoupledLr},
    {"decoupled_min_lr", kDecoupledLr},
    {"muon_tp_mode", "each matrix is gathered on one rank, with the same result on every layout; remove it"},
    {"muon_fp32_matmul_prec", "training.precision selects the type of Muon's GEMMs; remove it"},
    {"muon_use_syrk", "Muon's GEMMs have one implementation; remove it"},
    {"muon_scalar_optimizer", "adam updates the parameters that are not matrices; remove it"},
    {"moe_grouped_gemm", kGrouped},
    {"moe_use_legacy_grouped_gemm", kGrouped},
    {"moe_permute_fusion", "tokens are always permuted in one pass; remove it"},
    {"moe_router_fusion", "experts are always selected in one pass; remove it"},
    {"moe_router_padding_for_fp8", kFp8Rows},
    {"moe_router_padding_for_quantization", kFp8Rows},
    {"moe_shared_expert_overlap",
     "the shared expert is always computed while tokens are sent to the others; remove it"},
    {"moe_per_layer_logging", "metrics.jsonl always has losses and loads by layer; remove it"},
    {"moe_enable_deepep", kNodeDispatch},
    {"moe_flex_dispatcher_backend", kNodeDispatch},
    {"moe_deepep_num_sms", kNumSms},
    {"moe_hybridep_num_sms", kNumSms},
    {"moe_use_upcycling", kUpcycle},
    {"moe_upcycling_granularity", kUpcycle},
    {"external_cuda_graph",
     "device.cuda_graph_impl = \"local\" records graphs in this program, without Transformer Engine; remove it"},
    {"cuda_graph_scope",
     "with device.cuda_graph_impl = \"local\", a graph contains forward and backward of the whole model; remove it"},
    {"moe_pad_experts_for_cuda_graph_inference", "inference drops no token and pads no expert; remove it"},
};

struct ValueAdvice {
  std::string_view key, value, text;
};

constexpr ValueAdvice kValueAdvice[]{
    {"parallel.moe_token_dispatcher_type", "flex",
     "like flex with DeepEP or HybridEP, \"hierarchical\" sends a token once to each node"},
    {"parallel.moe_token_dispatcher_type", "alltoall_seq", "use \"alltoall\""},
    {"device.cuda_graph_impl", "transformer_engine", "use \"local\""},
    {"device.cuda_graph_impl", "full_iteration", "use \"local\", which records forward and backward of a microbatch"},
};

}  // namespace

std::string_view find_native_key(std::string_view foreign) {
  const auto it = std::ranges::find(kNames, foreign, &ForeignName::foreign);
  if (it != std::end(kNames)) return it->native;
  const auto former = std::ranges::find_if(kFormerNames, [&](const FormerName& name) {
    const std::size_t dot = name.former.find('.');
    return dot != std::string_view::npos && name.former.substr(dot + 1) == foreign;
  });
  return former == std::end(kFormerNames) ? std::string_view() : former->present;
}

std::string_view renamed_key(std::string_view former) {
  const auto it = std::ranges::find(kFormerNames, former, &FormerName::former);
  return it == std::end(kFormerNames) ? std::string_view() : it->present;
}

std::string_view find_advice(std::string_view foreign) {
  const auto it = std::ranges::find(kAdvice, foreign, &Advice::foreign);
  return it == std::end(kAdvice) ? std::string_view() : it->text;
}

std::string_view find_value_advice(std::string_view key, std::string_view value) {
  const auto it = std::ranges::find_if(
      kValueAdvice, [&](const ValueAdvice& advice) { return advice.key == key && advice.value == value; });
  return it == std::end(kValueAdvice) ? std::string_view() : it->text;
}

}  // namespace mcpp
