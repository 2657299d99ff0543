#include "megatron_cpp/huggingface/weight_names.h"

#include <algorithm>

namespace mcpp {
namespace {

using Names = std::vector<Counterpart>;

/// Returns `names` with the entries of `changes` replacing those of the same parameters.
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

Names gemma() {
  return with(olmo2(), {{"pre_mlp_layernorm", WeightConversion::AsIs, {"pre_feedforward_layernorm"}}});
}

}  // namespace

std::vector<Counterpart> counterparts(HuggingfaceFamily family) {
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
    case HuggingfaceFamily::Dots1:
      return dots1();
    case HuggingfaceFamily::Phi3:
      return phi3();
    case HuggingfaceFamily::Olmo2:
      return olmo2();
    case HuggingfaceFamily::Gemma2:
    case HuggingfaceFamily::Gemma3:
      return gemma();
    default:
      return llama();
  }
}

}  // namespace mcpp
