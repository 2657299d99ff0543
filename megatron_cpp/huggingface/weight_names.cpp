#include "megatron_cpp/huggingface/weight_names.h"

#include <algorithm>

namespace mcpp {
namespace {

using Names = std::vector<Counterpart>;

/// Returns `names` after replacing the entries of the parameters that `changes` lists.
Names with(Names names, const Names& changes) {
  for (const Counterpart& change : changes) {
    std::erase_if(names, [&](const Counterpart& name) { return name.ours == change.ours; });
    names.push_back(change);
  }
  return names;
}

Names gpt2() {
  return {
      {"embedding.word_embeddings", WeightConversion::Padded, {"wte"}},
      {"embedding.position_embeddings", WeightConversion::AsIs, {"wpe"}},
      {"input_layernorm", WeightConversion::AsIs, {"ln_1"}},
      {"self_attention.linear_qkv", WeightConversion::QkvTransposed, {"attn.c_attn"}},
      {"self_attention.linear_proj", WeightConversion::Transposed, {"attn.c_proj"}},
      {"pre_mlp_layernorm", WeightConversion::AsIs, {"ln_2"}},
      {"mlp.linear_fc1", WeightConversion::Transposed, {"mlp.c_fc"}},
      {"mlp.linear_fc2", WeightConversion::Transposed, {"mlp.c_proj"}},
      {"decoder.final_layernorm", WeightConversion::AsIs, {"ln_f"}},
      {"output_layer", WeightConversion::Padded, {}},
  };
}

Names gpt_neox() {
  return {
      {"embedding.word_embeddings", WeightConversion::Padded, {"embed_in"}},
      {"input_layernorm", WeightConversion::AsIs, {"input_layernorm"}},
      {"self_attention.linear_qkv", WeightConversion::Flat, {"attention.query_key_value"}},
      {"self_attention.linear_proj", WeightConversion::AsIs, {"attention.dense"}},
      {"pre_mlp_layernorm", WeightConversion::AsIs, {"post_attention_layernorm"}},
      {"mlp.linear_fc1", WeightConversion::AsIs, {"mlp.dense_h_to_4h"}},
      {"mlp.linear_fc2", WeightConversion::AsIs, {"mlp.dense_4h_to_h"}},
      {"decoder.final_layernorm", WeightConversion::AsIs, {"final_layer_norm"}},
      {"output_layer", WeightConversion::Padded, {}},
  };
}

Names llama() {
  return {
      {"embedding.word_embeddings", WeightConversion::Padded, {"embed_tokens"}},
      {"input_layernorm", WeightConversion::AsIs, {"input_layernorm"}},
      {"self_attention.linear_qkv",
       WeightConversion::Qkv,
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
      {"self_attention.q_layernorm", WeightConversion::AsIs, {"self_attn.q_norm"}},
      {"self_attention.k_layernorm", WeightConversion::AsIs, {"self_attn.k_norm"}},
      {"self_attention.linear_proj", WeightConversion::AsIs, {"self_attn.o_proj"}},
      {"pre_mlp_layernorm", WeightConversion::AsIs, {"post_attention_layernorm"}},
      {"mlp.linear_fc1", WeightConversion::Stacked, {"mlp.gate_proj", "mlp.up_proj"}},
      {"mlp.linear_fc2", WeightConversion::AsIs, {"mlp.down_proj"}},
      {"decoder.final_layernorm", WeightConversion::AsIs, {"norm"}},
      {"output_layer", WeightConversion::Padded, {}},
  };
}

Names mixtral() {
  return with(llama(), {
                           {"mlp.router", WeightConversion::AsIs, {"block_sparse_moe.gate"}},
                           {"mlp.experts.linear_fc1",
                            WeightConversion::PerExpert,
                            {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"}},
                           {"mlp.experts.linear_fc2", WeightConversion::PerExpert, {"block_sparse_moe.experts.#.w2"}},
                       });
}

Names qwen_moe() {
  return with(
      llama(),
      {
          {"mlp.router", WeightConversion::AsIs, {"mlp.gate"}},
          {"mlp.experts.linear_fc1", WeightConversion::PerExpert, {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"}},
          {"mlp.experts.linear_fc2", WeightConversion::PerExpert, {"mlp.experts.#.down_proj"}},
          {"mlp.shared_experts.linear_fc1",
           WeightConversion::Stacked,
           {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"}},
          {"mlp.shared_experts.linear_fc2", WeightConversion::AsIs, {"mlp.shared_expert.down_proj"}},
          {"mlp.shared_experts.gate", WeightConversion::AsIs, {"mlp.shared_expert_gate"}},
      });
}

Names dots1() {
  return with(qwen_moe(),
              {
                  {"mlp.router.expert_bias", WeightConversion::AsIs, {"mlp.gate.e_score_correction_bias"}},
                  {"mlp.shared_experts.linear_fc1",
                   WeightConversion::Stacked,
                   {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"}},
                  {"mlp.shared_experts.linear_fc2", WeightConversion::AsIs, {"mlp.shared_experts.down_proj"}},
              });
}

Names deepseek() {
  return with(dots1(),
              {
                  {"self_attention.linear_q_proj", WeightConversion::LatentQueries, {"self_attn.q_proj"}},
                  {"self_attention.linear_q_down_proj", WeightConversion::AsIs, {"self_attn.q_a_proj"}},
                  {"self_attention.q_layernorm", WeightConversion::AsIs, {"self_attn.q_a_layernorm"}},
                  {"self_attention.linear_q_up_proj", WeightConversion::LatentQueries, {"self_attn.q_b_proj"}},
                  {"self_attention.linear_kv_down_proj", WeightConversion::Latents, {"self_attn.kv_a_proj_with_mqa"}},
                  {"self_attention.kv_layernorm", WeightConversion::AsIs, {"self_attn.kv_a_layernorm"}},
                  {"self_attention.linear_kv_up_proj", WeightConversion::Flat, {"self_attn.kv_b_proj"}},
              });
}

Names phi3() {
  return with(llama(), {
                           {"self_attention.linear_qkv", WeightConversion::Qkv, {"self_attn.qkv_proj"}},
                           {"mlp.linear_fc1", WeightConversion::Flat, {"mlp.gate_up_proj"}},
                       });
}

Names olmo2() {
  return with(llama(), {
                           {"post_self_attn_layernorm", WeightConversion::AsIs, {"post_attention_layernorm"}},
                           {"post_mlp_layernorm", WeightConversion::AsIs, {"post_feedforward_layernorm"}},
                       });
}

Names olmo_hybrid() {
  return with(olmo2(), {
                           {"self_attention.in_proj",
                            WeightConversion::MixerSections,
                            {"linear_attn.q_proj", "linear_attn.k_proj", "linear_attn.v_proj", "linear_attn.g_proj",
                             "linear_attn.b_proj", "linear_attn.a_proj"}},
                           {"self_attention.conv1d",
                            WeightConversion::MixerSections,
                            {"linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"}},
                           {"self_attention.A_log", WeightConversion::AsIs, {"linear_attn.A_log"}},
                           {"self_attention.dt_bias", WeightConversion::AsIs, {"linear_attn.dt_bias"}},
                           {"self_attention.norm", WeightConversion::AsIs, {"linear_attn.o_norm"}},
                           {"self_attention.out_proj", WeightConversion::AsIs, {"linear_attn.o_proj"}},
                       });
}

Names gemma() {
  return with(olmo2(), {{"pre_mlp_layernorm", WeightConversion::AsIs, {"pre_feedforward_layernorm"}}});
}

Names gpt_oss() {
  return with(llama(),
              {
                  {"self_attention.core_attention.softmax_offset", WeightConversion::AsIs, {"self_attn.sinks"}},
                  {"mlp.router", WeightConversion::AsIs, {"mlp.router"}},
                  {"mlp.experts.linear_fc1", WeightConversion::ExpertsInterleaved, {"mlp.experts.gate_up_proj"}},
                  {"mlp.experts.linear_fc2", WeightConversion::Experts, {"mlp.experts.down_proj"}},
              });
}

Names qwen3_next() {
  return with(qwen_moe(), {
                              {"self_attention.linear_qkv",
                               WeightConversion::QkvGated,
                               {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                              {"self_attention.linear_qkv.gate", WeightConversion::HeadGates, {"self_attn.q_proj"}},
                              {"self_attention.in_proj",
                               WeightConversion::MixerByGroup,
                               {"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"}},
                              {"self_attention.conv1d", WeightConversion::MixerSections, {"linear_attn.conv1d"}},
                              {"self_attention.A_log", WeightConversion::AsIs, {"linear_attn.A_log"}},
                              {"self_attention.dt_bias", WeightConversion::AsIs, {"linear_attn.dt_bias"}},
                              {"self_attention.norm", WeightConversion::AsIs, {"linear_attn.norm"}},
                              {"self_attention.out_proj", WeightConversion::AsIs, {"linear_attn.out_proj"}},
                          });
}

Names qwen3_5() {
  return with(
      qwen3_next(),
      {{"self_attention.in_proj",
        WeightConversion::MixerSections,
        {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_b", "linear_attn.in_proj_a"}}});
}

Names llama4() {
  return with(llama(),
              {
                  {"self_attention.linear_qkv",
                   WeightConversion::QkvPairs,
                   {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                  {"mlp.linear_fc1", WeightConversion::Stacked, {"feed_forward.gate_proj", "feed_forward.up_proj"}},
                  {"mlp.linear_fc2", WeightConversion::AsIs, {"feed_forward.down_proj"}},
                  {"mlp.router", WeightConversion::AsIs, {"feed_forward.router"}},
                  {"mlp.experts.linear_fc1", WeightConversion::Experts, {"feed_forward.experts.gate_up_proj"}},
                  {"mlp.experts.linear_fc2", WeightConversion::Experts, {"feed_forward.experts.down_proj"}},
                  {"mlp.shared_experts.linear_fc1",
                   WeightConversion::Stacked,
                   {"feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj"}},
                  {"mlp.shared_experts.linear_fc2", WeightConversion::AsIs, {"feed_forward.shared_expert.down_proj"}},
              });
}

Names nemotron_h() {
  return {
      {"embedding.word_embeddings", WeightConversion::Padded, {"embeddings"}},
      {"input_layernorm", WeightConversion::AsIs, {"norm"}},
      {"self_attention.linear_qkv", WeightConversion::Qkv, {"mixer.q_proj", "mixer.k_proj", "mixer.v_proj"}},
      {"self_attention.linear_proj", WeightConversion::AsIs, {"mixer.o_proj"}},
      {"mixer.in_proj", WeightConversion::Mamba, {"mixer.in_proj"}},
      {"mixer.conv1d", WeightConversion::Mamba, {"mixer.conv1d"}},
      {"mixer.A_log", WeightConversion::AsIs, {"mixer.A_log"}},
      {"mixer.dt_bias", WeightConversion::AsIs, {"mixer.dt_bias"}},
      {"mixer.D", WeightConversion::AsIs, {"mixer.D"}},
      {"mixer.norm", WeightConversion::AsIs, {"mixer.norm"}},
      {"mixer.out_proj", WeightConversion::AsIs, {"mixer.out_proj"}},
      {"pre_mlp_layernorm", WeightConversion::AsIs, {"norm"}},
      {"mlp.linear_fc1", WeightConversion::AsIs, {"mixer.up_proj"}},
      {"mlp.linear_fc2", WeightConversion::AsIs, {"mixer.down_proj"}},
      {"mlp.router", WeightConversion::AsIs, {"mixer.gate"}},
      {"mlp.router.expert_bias", WeightConversion::AsIs, {"mixer.gate.e_score_correction_bias"}},
      {"mlp.fc1_latent_proj", WeightConversion::AsIs, {"mixer.fc1_latent_proj"}},
      {"mlp.fc2_latent_proj", WeightConversion::AsIs, {"mixer.fc2_latent_proj"}},
      {"mlp.experts.linear_fc1", WeightConversion::PerExpert, {"mixer.experts.#.up_proj"}},
      {"mlp.experts.linear_fc2", WeightConversion::PerExpert, {"mixer.experts.#.down_proj"}},
      {"mlp.shared_experts.linear_fc1", WeightConversion::AsIs, {"mixer.shared_experts.up_proj"}},
      {"mlp.shared_experts.linear_fc2", WeightConversion::AsIs, {"mixer.shared_experts.down_proj"}},
      {"decoder.final_layernorm", WeightConversion::AsIs, {"norm_f"}},
      {"output_layer", WeightConversion::Padded, {}},
  };
}

Names kimi_linear() {
  return with(
      deepseek(),
      {
          {"self_attention.linear_q_proj", WeightConversion::Flat, {"self_attn.q_proj"}},
          {"self_attention.linear_q_up_proj", WeightConversion::Flat, {"self_attn.q_b_proj"}},
          {"self_attention.linear_kv_down_proj", WeightConversion::AsIs, {"self_attn.kv_a_proj_with_mqa"}},
          {"self_attention.in_proj",
           WeightConversion::MixerSections,
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.b_proj"}},
          {"self_attention.gate_down_proj", WeightConversion::AsIs, {"self_attn.g_a_proj"}},
          {"self_attention.gate_up_proj", WeightConversion::Flat, {"self_attn.g_b_proj"}},
          {"self_attention.decay_down_proj", WeightConversion::AsIs, {"self_attn.f_a_proj"}},
          {"self_attention.decay_up_proj", WeightConversion::Flat, {"self_attn.f_b_proj"}},
          {"self_attention.conv1d",
           WeightConversion::MixerSections,
           {"self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"}},
          {"self_attention.A_log", WeightConversion::HeadVector, {"self_attn.A_log"}},
          {"self_attention.dt_bias", WeightConversion::AsIs, {"self_attn.dt_bias"}},
          {"self_attention.norm", WeightConversion::AsIs, {"self_attn.o_norm"}},
          {"self_attention.out_proj", WeightConversion::AsIs, {"self_attn.o_proj"}},
          {"mlp.router", WeightConversion::AsIs, {"block_sparse_moe.gate"}},
          {"mlp.router.expert_bias", WeightConversion::AsIs, {"block_sparse_moe.gate.e_score_correction_bias"}},
          {"mlp.experts.linear_fc1",
           WeightConversion::PerExpert,
           {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"}},
          {"mlp.experts.linear_fc2", WeightConversion::PerExpert, {"block_sparse_moe.experts.#.w2"}},
          {"mlp.shared_experts.linear_fc1",
           WeightConversion::Stacked,
           {"block_sparse_moe.shared_experts.gate_proj", "block_sparse_moe.shared_experts.up_proj"}},
          {"mlp.shared_experts.linear_fc2", WeightConversion::AsIs, {"block_sparse_moe.shared_experts.down_proj"}},
      });
}

Names names_of(HuggingfaceFamily family) {
  switch (family) {
    case HuggingfaceFamily::Gpt2:
      return gpt2();
    case HuggingfaceFamily::GptNeox:
      return gpt_neox();
    case HuggingfaceFamily::Mixtral:
      return mixtral();
    case HuggingfaceFamily::Qwen2Moe:
    case HuggingfaceFamily::Qwen3Moe:
      return qwen_moe();
    case HuggingfaceFamily::Qwen3Next:
      return qwen3_next();
    case HuggingfaceFamily::Qwen35:
    case HuggingfaceFamily::Qwen35Moe:
      return qwen3_5();
    case HuggingfaceFamily::Dots1:
      return dots1();
    case HuggingfaceFamily::DeepSeekV2:
    case HuggingfaceFamily::DeepSeekV3:
    case HuggingfaceFamily::Glm4MoeLite:
      return deepseek();
    case HuggingfaceFamily::KimiLinear:
      return kimi_linear();
    case HuggingfaceFamily::GptOss:
      return gpt_oss();
    case HuggingfaceFamily::Llama4:
      return llama4();
    case HuggingfaceFamily::NemotronH:
      return nemotron_h();
    case HuggingfaceFamily::Phi3:
      return phi3();
    case HuggingfaceFamily::Olmo2:
      return olmo2();
    case HuggingfaceFamily::OlmoHybrid:
      return olmo_hybrid();
    case HuggingfaceFamily::Gemma2:
    case HuggingfaceFamily::Gemma3:
      return gemma();
    default:
      return llama();
  }
}

/// Returns the names of the parameters of a layer for multi-token prediction outside of its block.
Names prediction_names(PredictionForm form) {
  const auto names = [](std::string_view embedding_norm, std::string_view hidden_norm, std::string_view projection,
                        std::string_view final_norm) {
    return Names{{"mtp.enorm", WeightConversion::AsIs, {embedding_norm}},
                 {"mtp.hnorm", WeightConversion::AsIs, {hidden_norm}},
                 {"mtp.eh_proj", WeightConversion::AsIs, {projection}},
                 {"mtp.final_layernorm", WeightConversion::AsIs, {final_norm}}};
  };
  switch (form) {
    case PredictionForm::After:
      return names("enorm", "hnorm", "eh_proj", "shared_head.norm");
    case PredictionForm::Branches:
      return names("enorm", "hnorm", "eh_proj", "final_layernorm");
    case PredictionForm::Module:
      return names("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm");
    default:
      return {};
  }
}

}  // namespace

std::vector<Counterpart> counterparts(const Family& family) {
  return with(names_of(family.family), prediction_names(family.traits.prediction));
}

}  // namespace mcpp
