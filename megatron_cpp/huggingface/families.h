// Table of the supported Hugging Face model types. A row has the names of a type and its differences from llama. A new
// family also needs the names of its weights in weight_names.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "model/config/config.h"

namespace mcpp {

/// Maximum number of layers. Larger numbers are rejected only after all keys are parsed, so parsers must not loop over
/// the layers of a larger model.
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
  KimiLinear,
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

/// Rule that selects the layers with a sliding window from the keys of config.json.
enum class WindowKeys : u8 {
  None,             ///< no window
  All,              ///< all layers, if sliding_window is set
  Types,            ///< those of layer_types; without this key all layers, if sliding_window is set
  FromLayer,        ///< those of layer_types; without this key those from max_window_layers on
  FromLayerIfUsed,  ///< those of layer_types; without this key and with use_sliding_window, those from
                    ///< max_window_layers on
  AllIfUsed,        ///< all layers, if use_sliding_window is set
  AllButEveryNth,   ///< those of layer_types; without this key all but every sliding_window_pattern-th
  NopeIfUsed        ///< those of layer_types; without this key and with use_sliding_window, those without RoPE
};
/// Linear layers with a bias.
enum class BiasKeys : u8 {
  None,
  Qkv,           ///< on queries, keys and values, always
  Attention,     ///< on queries, keys, values and the output projection of attention, if attention_bias
  AttentionMlp,  ///< like Attention, and on the MLP if mlp_bias
};
/// Dialect of the keys of experts; None: the type has no experts.
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
  KimiLinear,
  // Parsed and written by functions of the family, not by parse_experts() and add_experts().
  GptOss,
  Llama4
};
/// Layers that may have Gated DeltaNet or Kimi Delta Attention.
enum class LinearLayers : u8 {
  None,
  Any,
  Some  ///< at least one layer with it and at least one without
};
/// Norm of queries and keys: none, one per head, or one over all heads.
enum class HeadNormKind : u8 { None, EachHead, AllHeads };
/// Form in which weight files store the layers for multi-token prediction.
enum class PredictionForm : u8 {
  None,
  After,     ///< numbered after the last layer, each with a copy of the word embeddings and of the output matrix
  Module,    ///< one layer, below "mtp."
  Branches,  ///< below "mtp.", where the branches of all layers are numbered
  Megatron   ///< below "mtp.", one layer per prediction, with the names of Megatron Core
};

/// Differences of a model type from llama. Members named after a key are its default.
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
  i64 q_lora_rank = -1;               ///< rank of the query projection; negative: no multi-latent attention
  bool has_rope = true;               ///< false: layers have no RoPE
  bool supports_rope_scaling = true;  ///< accepts rope_scaling
  double partial_rotary_factor = 0;   ///< 0: the type lacks this key
  bool has_resid_pdrop = false;       ///< has the keys resid_pdrop and embd_pdrop
  bool has_no_rope_layers = false;    ///< has the keys no_rope_layers and no_rope_layer_interval
  LinearLayers linear_layers = LinearLayers::None;
  bool has_layer_pattern = false;  ///< layers with one branch each (hybrid_layer_pattern)
  /// Has Gemma's differences: GeGLU, norms that multiply by 1 + weight, scaled embeddings (tied by default),
  /// query_pre_attn_scalar and soft caps.
  bool is_gemma = false;
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;
  PredictionForm prediction = PredictionForm::None;
  const char* prediction_key =
      "num_nextn_predict_layers";  ///< key with the number of layers for multi-token prediction
};

/// One supported model type.
struct Family {
  HuggingfaceFamily family;
  std::string_view model_type, architecture;
  /// Prefix of weight names outside the layers, prefix of those inside a layer (before its number), and name of the
  /// output matrix.
  std::string_view base, layers, output;
  /// Returns the model that `config` describes. Throws BadInput, naming the key, for an unsupported value.
  ModelConfig (*parse)(const ConfigJson& config, const Family& family);
  /// Returns the keys that `parse` reads. Omits what the family cannot express.
  OrderedJson (*write)(const ModelConfig& model, const Family& family);
  LlamaTraits traits = {};
};

/// Returns all families, in the order of HuggingfaceFamily.
std::span<const Family> families();
const Family& family_row(HuggingfaceFamily family);
/// Returns true for families with multi-latent attention.
constexpr bool has_latent_attention(const Family& family) {
  return family.traits.q_lora_rank >= 0;
}
/// Returns the family with this model_type or alias, or nullptr.
const Family* find_family(std::string_view model_type);
/// Returns the model types of all families for messages: "gpt2, llama, ...".
std::string family_names();

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
ModelConfig parse_kimi_linear(const ConfigJson& config, const Family& family);
OrderedJson write_kimi_linear(const ModelConfig& model, const Family& family);
ModelConfig parse_nemotron_h(const ConfigJson& config, const Family& family);
OrderedJson write_nemotron_h(const ModelConfig& model, const Family& family);

/// Value of time_step_min in exports of nemotron_h. transformers clamps the time steps of Mamba-2 to at least
/// time_step_min when it processes several tokens; Megatron-LM and this program do not clamp them.
inline constexpr double kUnlimitedTimeStep = 1e-30;
/// Returns the configuration keys of a hybrid model whose values nemotron_h cannot express and a round trip through
/// config.json does not detect.
std::vector<std::string> unsupported_hybrid_options(const ModelConfig& model);

}  // namespace mcpp
