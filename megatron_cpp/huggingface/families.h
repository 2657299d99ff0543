// Supported model types of Hugging Face: one row each, with its names and its differences from llama. Each family also
// needs the names of its weights (weight_map.cpp).
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "model/config/config.h"

namespace mcpp {

/// Maximum number of layers. Larger numbers are rejected together with all other errors; do not enumerate layers before
/// that check.
inline constexpr i64 kMaxLayers = 100000;

/// Model types. An export uses the first type that can express the model.
enum class HuggingfaceFamily : u8 {
  Gpt2,
  Llama,
  Mistral,
  Ministral,
  Qwen2,
  Mixtral,
  Qwen2Moe,
  Qwen3,
  Qwen3Moe,
  Qwen3Next,
  Qwen35,
  Qwen35Moe,
  Dots1,
  DeepSeekV2,
  DeepSeekV3,
  Glm4MoeLite,
  Phi3,
  Olmo2,
  OlmoHybrid,
  Gemma2,
  Gemma3,
  SmolLm3,
  GptOss,
  Llama4,
  GptNeox,
  NemotronH
};

/// Convention of config.json for the layers with a sliding window.
enum class WindowKeys : u8 {
  None,             ///< no window
  All,              ///< all layers, if sliding_window is set
  Types,            ///< all layers, if sliding_window is set, or those of layer_types
  FromLayer,        ///< those of layer_types, or those from max_window_layers on
  FromLayerIfUsed,  ///< those of layer_types, or with use_sliding_window those from max_window_layers on
  AllIfUsed,        ///< all layers, if use_sliding_window is set
  AllButEveryNth,   ///< those of layer_types, or all but every sliding_window_pattern-th
  NopeIfUsed        ///< those of layer_types, or with use_sliding_window those without RoPE
};
enum class BiasKeys : u8 {
  None,
  Qkv,           ///< on queries, keys and values, always
  Attention,     ///< on queries, keys, values and attention's output: attention_bias
  AttentionMlp,  ///< additionally on the MLP: mlp_bias
};
enum class ExpertKeys : u8 {
  None,
  Mixtral,
  Qwen2,
  Qwen3,
  Qwen3Next,
  Qwen35Moe,
  Dots1,
  DeepSeekV2,
  DeepSeekV3,
  Glm4MoeLite,
  // Read and written by the functions of their families.
  GptOss,
  Llama4
};
/// Layers with Gated DeltaNet.
enum class LinearLayers : u8 {
  None,
  Any,
  Some  ///< at least one layer has it, and at least one does not
};
enum class HeadNormKind : u8 { None, EachHead, AllHeads };

/// Differences of a type from llama. Values are defaults for absent keys.
struct LlamaTraits {
  i64 max_position_embeddings = 2048;
  i64 num_key_value_heads = 0;  ///< 0: num_attention_heads
  i64 head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  double rope_local_base_freq = 0;  ///< base of layers with a window; 0: one RoPE for all layers
  BiasKeys biases = BiasKeys::None;
  WindowKeys windows = WindowKeys::None;
  i64 sliding_window = 4096;
  i64 window_pattern = 0, max_window_layers = 28;
  ExpertKeys experts = ExpertKeys::None;
  HeadNormKind head_norms = HeadNormKind::None;
  NormPosition norms = NormPosition::Pre;
  i64 q_lora_rank = -1;               ///< width of the latent of queries; negative: no multi-latent attention
  bool supports_rope_scaling = true;  ///< supports our kinds of scaled RoPE
  double partial_rotary_factor = 0;   ///< default of partial_rotary_factor; 0: the type lacks this key
  bool has_resid_pdrop = false;       ///< resid_pdrop and embd_pdrop
  bool has_no_rope_layers = false;    ///< no_rope_layers, or no_rope_layer_interval
  LinearLayers linear_layers = LinearLayers::None;
  bool has_layer_pattern = false;  ///< layers with one branch each (hybrid_layer_pattern)
  /// GeGLU, norms that multiply by 1 + weight, scaled embeddings (tied by default), query_pre_attn_scalar
  /// and soft caps.
  bool is_gemma = false;
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;
  /// Prefix of the tensors for multi-token prediction; empty: they are layers after the others, or there are none.
  std::string_view prediction_prefix = {};
};

struct Family {
  HuggingfaceFamily family;
  std::string_view model_type, architecture;
  /// Prefix of weight names outside the layers, prefix of those inside a layer (before its number), and name of the
  /// output matrix.
  std::string_view base, layers, output;
  /// Returns the model of a config.json of this type. Throws BadInput, naming the key, for values that this program
  /// does not support.
  ModelConfig (*parse)(const ConfigJson& config, const Family& family);
  /// Returns the keys that `parse` reads. For a model that the family cannot express, returns only the keys that it
  /// can.
  OrderedJson (*write)(const ModelConfig& model, const Family& family);
  LlamaTraits traits = {};
};

/// Returns the families in the order of the enum.
std::span<const Family> families();
const Family& family_row(HuggingfaceFamily family);
/// Returns true for families with multi-latent attention.
constexpr bool has_latent_attention(const Family& family) {
  return family.traits.q_lora_rank >= 0;
}
/// Returns the family of a model_type or of another name of it, or null.
const Family* find_family(std::string_view model_type);
/// Returns "gpt2, llama, ..".
std::string family_names();

// Dialects of config.json: the keys of gpt2, of gpt_neox, of nemotron_h, of llama and similar types, and of DeepSeek's
// types with multi-latent attention.

// Implementations of Family::parse and Family::write.
ModelConfig parse_gpt2(const ConfigJson& config, const Family& family);
OrderedJson write_gpt2(const ModelConfig& model, const Family& family);
ModelConfig parse_gpt_neox(const ConfigJson& config, const Family& family);
OrderedJson write_gpt_neox(const ModelConfig& model, const Family& family);
ModelConfig parse_llama(const ConfigJson& config, const Family& family);
OrderedJson write_llama(const ModelConfig& model, const Family& family);
ModelConfig parse_deepseek(const ConfigJson& config, const Family& family);
OrderedJson write_deepseek(const ModelConfig& model, const Family& family);
ModelConfig parse_smollm3(const ConfigJson& config, const Family& family);
ModelConfig parse_gpt_oss(const ConfigJson& config, const Family& family);
OrderedJson write_gpt_oss(const ModelConfig& model, const Family& family);
ModelConfig parse_llama4(const ConfigJson& config, const Family& family);
OrderedJson write_llama4(const ModelConfig& model, const Family& family);
ModelConfig parse_qwen3_next(const ConfigJson& config, const Family& family);
OrderedJson write_qwen3_next(const ModelConfig& model, const Family& family);
ModelConfig parse_olmo_hybrid(const ConfigJson& config, const Family& family);
OrderedJson write_olmo_hybrid(const ModelConfig& model, const Family& family);
ModelConfig parse_nemotron_h(const ConfigJson& config, const Family& family);
OrderedJson write_nemotron_h(const ModelConfig& model, const Family& family);

/// Value of time_step_min in exports of nemotron_h. transformers raises smaller time steps of Mamba-2 to time_step_min
/// while it computes several tokens; Megatron-LM and this program have no such limit.
inline constexpr double kUnlimitedTimeStep = 1e-30;
/// Returns the keys of a model with layers of one branch each whose values nemotron_h cannot express; others are found
/// by a round trip.
std::vector<std::string> unsupported_hybrid_options(const ModelConfig& model);

}  // namespace mcpp
