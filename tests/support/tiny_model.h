// Small models of both families with their parameters.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "comm/communicator.h"
#include "model/gpt_model.h"
#include "parallel/partial_gradients.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

inline ModelConfig tiny_gpt2() {
  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 24;
  config.num_attention_heads = 3;
  config.seq_length = 10;
  config.vocab_size = 29;
  config.make_vocab_size_divisible_by = 16;
  config.hidden_dropout = config.attention_dropout = 0;
  config.init_method_std = 0.1;
  return config;
}

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_gpt2();
  config.hidden_size = 32;
  config.ffn_hidden_size = 40;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.position_embedding_type = PositionEmbedding::Rope;
  config.rotary_percent = 0.5;
  config.normalization = Normalization::RMSNorm;
  config.activation_func = ActivationFunction::SwiGLU;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

/// Returns a model with Gated DeltaNet in two of three layers.
inline ModelConfig tiny_delta_net() {
  ModelConfig config = tiny_llama();
  config.norm_epsilon = 1e-2;  // the norms after scans have small inputs, so that they would amplify rounding
  config.recurrent = {.linear_attention_freq = {3},
                      .linear_num_key_heads = 8,
                      .linear_num_value_heads = 16,
                      .linear_key_head_dim = 6,
                      .linear_value_head_dim = 4};
  return config;
}

/// Returns a model with the Gated DeltaNet, gated attention and zero-centered norms of Qwen3-Next, without experts.
inline ModelConfig tiny_qwen3_next() {
  ModelConfig config = tiny_delta_net();
  config.kv_channels = 12;
  config.qk_layernorm = config.apply_layernorm_1p = true;
  config.attention_output_gate = {1};
  config.recurrent.linear_attention_freq = {2};
  return config;
}

/// Returns a model with the norms before Gated DeltaNet and after attention and the large steps of OLMo Hybrid.
inline ModelConfig tiny_olmo_hybrid() {
  ModelConfig config = tiny_delta_net();
  config.position_embedding_type = PositionEmbedding::None;
  config.rotary_percent = 1;
  config.qk_layernorm = config.qk_layernorm_all_heads = true;
  config.recurrent.linear_attention_freq = config.post_norm_freq = {2};
  config.recurrent.linear_allow_neg_eigval = true;
  config.recurrent.linear_norm_epsilon = 2e-2;
  return config;
}

/// Returns a model whose layers have one branch: Mamba-2, Gated DeltaNet, or an MLP.
inline ModelConfig tiny_mamba() {
  ModelConfig config = tiny_llama();
  config.hybrid_layer_pattern = "MG-";
  config.norm_epsilon = 1e-2;
  config.recurrent = {.linear_num_key_heads = 8,
                      .linear_num_value_heads = 8,
                      .linear_key_head_dim = 4,
                      .linear_value_head_dim = 4,
                      .linear_conv_kernel_dim = 3,
                      .mamba_state_dim = 6,
                      .mamba_head_dim = 4,
                      .mamba_num_groups = 8,
                      .mamba_num_heads = 16};
  return config;
}

/// Returns a model like Nemotron 3: layers with Mamba-2, latent experts, or attention without RoPE.
inline ModelConfig tiny_nemotron() {
  ModelConfig config = tiny_llama();
  config.hybrid_layer_pattern = "ME*";
  config.norm_epsilon = 1e-2;
  config.position_embedding_type = PositionEmbedding::None;
  config.rotary_percent = 1;
  config.activation_func = ActivationFunction::SquaredReLU;
  config.recurrent = {.mamba_state_dim = 6, .mamba_head_dim = 4, .mamba_num_groups = 8, .mamba_num_heads = 16};
  config.moe.num_experts = 4, config.moe.ffn_hidden_size = 24, config.moe.latent_size = 20;
  config.moe.router_score_function = RouterScore::Sigmoid, config.moe.router_enable_expert_bias = true;
  config.moe.shared_expert_intermediate_size = 16;
  return config;
}

/// Returns a model with the attention sinks, limited activations and windows of gpt-oss, without experts.
inline ModelConfig tiny_gpt_oss() {
  ModelConfig config = tiny_llama();
  config.softmax_type = SoftmaxType::Learnable;
  config.activation_func = ActivationFunction::QuickGeGLU;
  config.activation_func_clamp_value = 1.5;  // some values exceed it, few are close to it
  config.glu_linear_offset = 1;
  config.add_qkv_bias = config.add_attention_output_bias = config.add_mlp_bias = true;
  config.window_size = {3, 0};
  config.window_attn_skip_freq = {2};
  return config;
}

/// Layers with and without RoPE of Llama 4, without experts.
inline ModelConfig tiny_llama4() {
  ModelConfig config = tiny_llama();
  config.no_rope_freq = {2};
  config.qk_l2_norm = config.attn_temperature_tuning = true;
  config.attn_temperature_floor_scale = 3;
  config.attn_temperature_scale = 0.5;
  config.attention_chunk_size = 4;
  config.softmax_type = SoftmaxType::OffByOne;
  return config;
}

/// Sets the number of layers, and repeats or truncates what the model specifies for each layer.
inline void set_num_layers(ModelConfig& config, i64 layers) {
  const auto count = static_cast<std::size_t>(layers);
  const auto resize = [&](PerLayer<i64>& sizes) {
    if (!sizes.is_list()) return;
    std::vector<i64> values;
    for (std::size_t i = 0; i < count; ++i) values.push_back(sizes.values()[i % sizes.values().size()]);
    sizes = PerLayer(std::move(values));
  };
  resize(config.num_query_groups);
  resize(config.ffn_hidden_size);
  const std::string pattern = config.hybrid_layer_pattern;
  for (std::size_t i = 0; !pattern.empty() && i < count; ++i)
    i == 0 ? config.hybrid_layer_pattern.assign(1, pattern[0])
           : config.hybrid_layer_pattern += pattern[i % pattern.size()];
  config.num_layers = layers;
}

/// Returns `config`, a model with RoPE, with multi-latent attention.
inline ModelConfig with_latent_attention(ModelConfig config) {
  config.num_query_groups = 0, config.rotary_percent = 1;
  config.mla = {.is_used = true,
                .q_lora_rank = 12,
                .kv_lora_rank = 10,
                .qk_head_dim = 6,
                .qk_pos_emb_head_dim = 4,
                .v_head_dim = 8};
  return config;
}

/// Returns a model like Kimi-Linear, without experts: Kimi Delta Attention in two of three layers, and latent attention
/// without RoPE in the others.
inline ModelConfig tiny_kimi_linear() {
  ModelConfig config = with_latent_attention(tiny_delta_net());
  config.position_embedding_type = PositionEmbedding::None;
  config.mla.q_lora_rank = 0;
  config.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
  return config;
}

/// Returns a model like DeepSeek-V2, and one whose values are wider than keys and whose queries have no latent.
inline std::pair<ModelConfig, ModelConfig> tiny_latent_models() {
  ModelConfig deepseek = with_latent_attention(tiny_llama()), wide_values = deepseek;
  deepseek.mla.latent_norm_epsilon = 1e-3;
  deepseek.rope_scaling = {.type = RopeScalingType::Yarn,
                           .factor = 8,
                           .original_max_position_embeddings = 4,
                           .mscale = 0.7,
                           .mscale_all_dim = 1};
  wide_values.mla.q_lora_rank = 0;
  wide_values.mla.v_head_dim = 14;
  wide_values.normalization = Normalization::LayerNorm;
  wide_values.no_rope_freq = {2};
  wide_values.window_size = {4, 0};
  wide_values.attn_logit_softcapping = 2;
  wide_values.add_bias_linear = true;
  return {deepseek, wide_values};
}

/// Norms on both sides of branches, soft caps, windows and two kinds of RoPE of Gemma.
inline ModelConfig tiny_gemma() {
  ModelConfig config = tiny_llama();
  config.activation_func = ActivationFunction::GeGLU;
  config.norm_position = NormPosition::Both;
  config.apply_layernorm_1p = config.qk_layernorm = true;
  config.query_pre_attn_scalar = 3;
  config.attn_logit_softcapping = 0.5;
  config.final_logit_softcapping = 0.7;
  config.embedding_multiplier = 5;
  config.window_size = {3, 0};
  config.window_attn_skip_freq = {2};
  config.rope_local_base_freq = 100;
  config.untie_embeddings_and_output_weights = false;
  return config;
}

/// Model with features of families other than GPT-2 and Llama; together these models cover all features.
struct NamedModel {
  const char* name;
  ModelConfig config;
};

/// Returns models with the maximal update parametrization, untied and tied, and with a z-loss after a soft cap.
inline std::vector<NamedModel> tiny_tuning_models() {
  ModelConfig mup = tiny_llama();
  mup.mup = {.is_used = true, .base_hidden_size = 20, .base_head_dim = 5};
  ModelConfig mup_tied = tiny_gpt2();
  mup_tied.mup = {.is_used = true, .base_hidden_size = 8, .output_mult = 0.75, .attn_scale_power = 0.5};
  mup_tied.embedding_init_method_std = 0.2;
  ModelConfig z_loss = tiny_gpt2();
  z_loss.output_z_loss_coeff = 0.01;
  z_loss.final_logit_softcapping = 3;
  return {{"mup", mup}, {"mup_tied", mup_tied}, {"z_loss", z_loss}};
}

/// Returns models with multi-token prediction.
inline std::vector<NamedModel> tiny_prediction_models() {
  ModelConfig mtp = tiny_llama();
  mtp.mtp_num_layers = 2;
  mtp.mtp_loss_scaling_factor = 0.5;
  ModelConfig mtp_tied = tiny_gemma();
  mtp_tied.mtp_num_layers = 1;
  ModelConfig mtp_attention = tiny_delta_net();
  mtp_attention.recurrent.linear_attention_freq = {5};  // the last of 3 or 8 layers has Gated DeltaNet
  mtp_attention.mtp_num_layers = 1;
  mtp_attention.mtp_hybrid_layer_pattern = "*-";
  return {{"mtp", mtp}, {"mtp_tied", mtp_tied}, {"mtp_attention", mtp_attention}};
}

inline std::vector<NamedModel> tiny_variants() {
  ModelConfig qwen3 = tiny_llama();
  qwen3.qk_layernorm = true;
  qwen3.kv_channels = 12;
  ModelConfig gated_attention = qwen3;
  gated_attention.attention_output_gate = {2};
  ModelConfig olmo2 = tiny_llama();
  olmo2.qk_layernorm = olmo2.qk_layernorm_all_heads = true;
  olmo2.norm_position = NormPosition::Post;
  olmo2.add_bias_linear = true;
  ModelConfig neox = tiny_llama();
  neox.use_parallel_residual = true;
  neox.normalization = Normalization::LayerNorm;
  neox.activation_func = ActivationFunction::GeluErf;
  neox.num_query_groups = 0;
  neox.add_bias_linear = true;
  ModelConfig mixed = neox;
  mixed.norm_position = NormPosition::Both;
  mixed.qk_layernorm = mixed.apply_layernorm_1p = true;
  mixed.embedding_multiplier = 2;
  mixed.position_embedding_type = PositionEmbedding::LearnedAbsolute;
  mixed.rotary_percent = 1;
  ModelConfig hybrid = tiny_llama();  // layers with one branch each
  hybrid.hybrid_layer_pattern = "*-*";
  ModelConfig heterogeneous = tiny_llama();
  heterogeneous.num_query_groups = PerLayer<i64>({2, 4, 1});
  heterogeneous.ffn_hidden_size = PerLayer<i64>({40, 24, 56});
  heterogeneous.no_rope_freq = {2};
  const auto [deepseek, wide_values] = tiny_latent_models();
  std::vector<NamedModel> variants{{"qwen3", qwen3},
                                   {"gated_attention", gated_attention},
                                   {"qwen3_next", tiny_qwen3_next()},
                                   {"olmo_hybrid", tiny_olmo_hybrid()},
                                   {"olmo2", olmo2},
                                   {"gemma", tiny_gemma()},
                                   {"neox", neox},
                                   {"parallel_both_norms", mixed},
                                   {"hybrid", hybrid},
                                   {"gpt_oss", tiny_gpt_oss()},
                                   {"heterogeneous", heterogeneous},
                                   {"llama4", tiny_llama4()},
                                   {"deepseek", deepseek},
                                   {"latent_wide_values", wide_values},
                                   {"gated_deltanet", tiny_delta_net()},
                                   {"kimi_linear", tiny_kimi_linear()},
                                   {"mamba", tiny_mamba()},
                                   {"nemotron", tiny_nemotron()}};
  for (const auto& more : {tiny_tuning_models(), tiny_prediction_models()})
    variants.insert(variants.end(), more.begin(), more.end());
  return variants;
}

/// A model with allocated, initialized parameters and gradients, on one rank or as one rank of `tp`.
struct TinyModel {
  TinyModel(const ModelConfig& config, DType dtype, Recompute recompute = {}, int threads = 1,
            Communicator* tp = nullptr, bool sequence_parallel = false, const Fp8Layers& fp8 = {})
      : TinyModel(std::make_unique<CpuDevice>(CpuOptions{.threads = threads}), config, dtype, recompute, tp,
                  sequence_parallel, fp8) {}
  TinyModel(std::unique_ptr<Device> on, const ModelConfig& config, DType dtype, Recompute recompute = {},
            Communicator* tp = nullptr, bool sequence_parallel = false, const Fp8Layers& fp8 = {})
      : owned_device(std::move(on)),
        device(*owned_device),
        self(make_self_communicator()),
        model({.config = config,
               .dtype = dtype,
               .recompute = recompute,
               .device = device,
               .tp = tp ? *tp : *self,
               .sequence_parallel = sequence_parallel,
               .fp8 = fp8}) {
    std::vector<UnitParam> params;
    model.visit([&](Param& param, int unit) { params.push_back({&param, unit}); });
    memory = std::make_unique<ChunkParamBuffers>(
        params, dtype, device,
        [this](GridKind) {
          return DataParallelGroups{*self, *self};
        },
        Layout{.bucket_size = 0});
    partial_gradients = std::make_unique<PartialGradients>(memory->buffers(), ReplicaGroups{model.context().tp});
    model.visit([&](Param& param, int) { initialize(param, 7); });
    model.set_memory(*memory);
  }

  /// Makes random tokens and targets [s, b]. Some targets are ignored.
  void make_batch(i64 batch) {
    const ModelConfig& config = model.context().config;
    const auto vocab = static_cast<u64>(config.vocab_size), count = static_cast<u64>(config.seq_length * batch);
    std::vector<i32> ids, next;
    for (u64 i = 0; i < count; ++i) {
      ids.push_back(static_cast<i32>(philox_key(1, "tokens", i) % vocab));
      next.push_back(i % 7 == 3 ? -1 : static_cast<i32>(philox_key(1, "targets", i) % vocab));
    }
    tokens = integers_of(ids, device).view({config.seq_length, batch});
    targets = integers_of(next, device).view({config.seq_length, batch});
    make_future_tokens(ids, next, batch);
    for (i64 b = 0; b < batch; ++b) samples.push_back(b + 100);
  }

  /// Derives the tokens and targets of multi-token prediction from the batch.
  void make_future_tokens(const std::vector<i32>& ids, const std::vector<i32>& next, i64 batch) {
    const ModelConfig& config = model.context().config;
    future.clear();
    for (i64 k = 1; k <= config.mtp_num_layers; ++k) {
      const auto ahead = static_cast<std::size_t>(k * batch);  // sequence first
      std::vector<i32> shifted_ids(ids.begin() + ahead, ids.end()), shifted_next(next.begin() + ahead, next.end());
      shifted_ids.resize(ids.size(), 0), shifted_next.resize(next.size(), -1);
      future.push_back({integers_of(shifted_ids, device).view({config.seq_length, batch}),
                        integers_of(shifted_next, device).view({config.seq_length, batch})});
    }
  }

  /// Packs each sample from documents: [b][document] lengths.
  void make_documents(const std::vector<std::vector<i64>>& lengths) {
    const i64 batch = static_cast<i64>(lengths.size());
    std::vector<i32> starts(static_cast<std::size_t>(tokens.numel()));
    for (i64 b = 0; b < batch; ++b) {
      i64 begin = 0;
      for (const i64 length : lengths[static_cast<std::size_t>(b)]) {
        for (i64 s = begin; s < begin + length; ++s)
          starts[static_cast<std::size_t>(s * batch + b)] = static_cast<i32>(begin);
        begin += length;
      }
    }
    attention_starts = position_starts = integers_of(starts, device).view(tokens.shape());
  }

  MicrobatchContext pass(bool training) const {
    MicrobatchContext p;
    p.training = p.saves_for_backward = training;
    p.samples = samples;
    p.attention_starts = attention_starts, p.position_starts = position_starts;
    return p;
  }

  /// Returns the sum of the losses, including the z-loss, with those of multi-token prediction times their weight.
  double loss() {
    MicrobatchContext p = pass(false);
    p.saves_for_backward = !future.empty();  // otherwise multi-token prediction is left out
    return sum(model.loss(tokens, {targets, future}, 1, p));
  }
  double sum(const GPTModel::Losses& losses) const {
    const ModelConfig& config = model.context().config;
    double total = losses.next.sum();
    if (losses.next.z_loss.defined()) total += read_values<double>(losses.next.z_loss)[0];
    for (const TokenLosses& ahead : losses.future)
      total += config.mtp_loss_scaling_factor / static_cast<double>(config.mtp_num_layers) * ahead.sum();
    return total;
  }
  /// Runs forward and backward, and returns the sum of the losses.
  double step(bool delay_wgrad_compute = false) {
    memory->clear_grads();
    MicrobatchContext p = pass(true);
    p.delay_wgrad_compute = delay_wgrad_compute;
    p.is_last = !delay_wgrad_compute;  // otherwise gradients are reduced during backward
    const double total = sum(model.loss(tokens, {targets, future}, 1, p));
    model.backward({}, p);
    p.run_delayed_wgrads();
    model.release_gradients();
    partial_gradients->finish();
    return total;
  }
  /// Returns the gradients of all parameters as one list.
  Numbers gradients() {
    Numbers all;
    model.visit([&](Param& param, int) {
      const Numbers x = to_doubles(param.main_grad);
      all.insert(all.end(), x.begin(), x.end());
    });
    return all;
  }

  std::unique_ptr<Device> owned_device;
  Device& device;
  std::unique_ptr<Communicator> self;
  GPTModel model;
  std::unique_ptr<ChunkParamBuffers> memory;
  std::unique_ptr<PartialGradients> partial_gradients;
  Tensor tokens, targets;
  std::vector<FutureTokens> future;          ///< for each layer of multi-token prediction
  Tensor attention_starts, position_starts;  ///< see MicrobatchContext
  std::vector<i64> samples;
};

}  // namespace mcpp::test
