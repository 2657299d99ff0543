#include "megatron_cpp/huggingface/families.h"

#include <algorithm>
#include <vector>

#include "base/strings.h"
#include "megatron_cpp/huggingface/dialects.h"

namespace mcpp {
namespace {

using F = HuggingfaceFamily;

/// Returns a family that equals llama except for its traits.
constexpr Family llama_like(F family, std::string_view model_type, std::string_view architecture,
                            const LlamaTraits& traits) {
  return {.family = family,
          .model_type = model_type,
          .architecture = architecture,
          .base = "model.",
          .layers = "layers.",
          .output = "lm_head",
          .parse = parse_llama,
          .write = write_llama,
          .traits = traits};
}

constexpr Family kFamilies[]{
    {F::Gpt2, "gpt2", "GPT2LMHeadModel", "transformer.", "h.", "lm_head", parse_gpt2, write_gpt2},
    llama_like(F::Llama, "llama", "LlamaForCausalLM", {.biases = BiasKeys::AttentionMlp}),
    llama_like(F::Mistral, "mistral", "MistralForCausalLM",
               {.max_position_embeddings = 131072, .num_key_value_heads = 8, .windows = WindowKeys::All}),
    llama_like(F::Ministral, "ministral", "MinistralForCausalLM",
               {.max_position_embeddings = 131072, .num_key_value_heads = 8, .windows = WindowKeys::Types}),
    llama_like(F::Qwen2, "qwen2", "Qwen2ForCausalLM",
               {.max_position_embeddings = 32768, .biases = BiasKeys::Qkv, .windows = WindowKeys::FromLayerIfUsed}),
    llama_like(F::Mixtral, "mixtral", "MixtralForCausalLM",
               {.max_position_embeddings = 131072,
                .num_key_value_heads = 8,
                .rms_norm_eps = 1e-5,
                .windows = WindowKeys::All,
                .sliding_window = 0,
                .experts = ExpertKeys::Mixtral}),
    llama_like(F::Qwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM",
               {.max_position_embeddings = 32768,
                .biases = BiasKeys::Qkv,
                .windows = WindowKeys::FromLayerIfUsed,
                .experts = ExpertKeys::Qwen2}),
    llama_like(F::Qwen3, "qwen3", "Qwen3ForCausalLM",
               {.max_position_embeddings = 32768,
                .num_key_value_heads = 32,
                .head_dim = 128,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::FromLayerIfUsed,
                .head_norms = HeadNormKind::EachHead}),
    llama_like(F::Qwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM",
               {.max_position_embeddings = 32768,
                .num_key_value_heads = 4,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::AllIfUsed,
                .experts = ExpertKeys::Qwen3,
                .head_norms = HeadNormKind::EachHead}),
    llama_like(F::Dots1, "dots1", "Dots1ForCausalLM",
               {.num_key_value_heads = 32,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::FromLayer,
                .max_window_layers = 62,
                .experts = ExpertKeys::DeepSeek,
                .head_norms = HeadNormKind::EachHead}),
    llama_like(F::Phi3, "phi3", "Phi3ForCausalLM",
               {.max_position_embeddings = 4096,
                .rms_norm_eps = 1e-5,
                .windows = WindowKeys::All,
                .sliding_window = 0,
                .scales_rope = false,
                .rotates_partly = true,
                .has_resid_pdrop = true}),
    llama_like(F::Olmo2, "olmo2", "Olmo2ForCausalLM",
               {.rms_norm_eps = 1e-5,
                .biases = BiasKeys::Attention,
                .head_norms = HeadNormKind::AllHeads,
                .norms = NormPosition::Post}),
    llama_like(F::Gemma2, "gemma2", "Gemma2ForCausalLM",
               {.max_position_embeddings = 8192,
                .num_key_value_heads = 4,
                .head_dim = 256,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::AllButEveryNth,
                .window_pattern = 2,
                .norms = NormPosition::Both,
                .is_gemma = true,
                .attn_logit_softcapping = 50,
                .final_logit_softcapping = 30}),
    llama_like(F::Gemma3, "gemma3_text", "Gemma3ForCausalLM",
               {.max_position_embeddings = 131072,
                .num_key_value_heads = 4,
                .head_dim = 256,
                .rope_theta = 1e6,
                .rope_local_base_freq = 10000,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::AllButEveryNth,
                .window_pattern = 6,
                .head_norms = HeadNormKind::EachHead,
                .norms = NormPosition::Both,
                .is_gemma = true}),
    {F::GptNeox, "gpt_neox", "GPTNeoXForCausalLM", "gpt_neox.", "layers.", "embed_out", parse_gpt_neox, write_gpt_neox},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family& family_row(HuggingfaceFamily family) {
  return kFamilies[static_cast<std::size_t>(family)];
}

const Family* find_family(std::string_view model_type) {
  const auto* it = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return it == std::end(kFamilies) ? nullptr : it;
}

std::string family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.model_type);
  return join(names, ", ");
}

}  // namespace mcpp
