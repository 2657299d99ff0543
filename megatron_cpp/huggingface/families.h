// The model types of Hugging Face that are known: a row for each, with what it is called and in what it differs from
// llama. Beside its row a family needs the names of its weights (weight_names.cpp).
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "model/config/config.h"

namespace mcpp {

/// More layers than this are refused when all is read, and are not listed before.
inline constexpr i64 kMostLayers = 100000;

/// Of several that can express a model, an export takes the first.
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
  Dots1,
  Phi3,
  Olmo2,
  Gemma2,
  Gemma3,
  GptNeox
};

/// How config.json says which layers have a sliding window.
enum class WindowKeys : u8 {
  None,             ///< not at all
  All,              ///< sliding_window: all
  Types,            ///< or those of layer_types
  FromLayer,        ///< those of layer_types, or those from max_window_layers on
  FromLayerIfUsed,  ///< those of layer_types, or with use_sliding_window those from max_window_layers on
  AllIfUsed,        ///< with use_sliding_window all
  AllButEveryNth    ///< those of layer_types, or all but every sliding_window_pattern-th
};
enum class BiasKeys : u8 {
  None,
  Qkv,           ///< of queries, keys and values, always
  Attention,     ///< of these and of attention's output: attention_bias
  AttentionMlp,  ///< these, and those of the MLP: mlp_bias
};
enum class ExpertKeys : u8 { None, Mixtral, Qwen2, Qwen3, DeepSeek };
enum class HeadNormKind : u8 { None, EachHead, AllHeads };

/// How a type that is llama else differs from it. Numbers are what an absent key stands for.
struct LlamaTraits {
  i64 max_position_embeddings = 2048;
  i64 num_key_value_heads = 0;  ///< 0: num_attention_heads
  i64 head_dim = 0;             ///< 0: hidden_size / num_attention_heads
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  double rope_local_base_freq = 0;  ///< of layers with a window; 0: one RoPE for all layers
  BiasKeys biases = BiasKeys::None;
  WindowKeys windows = WindowKeys::None;
  i64 sliding_window = 4096;
  i64 window_pattern = 0, max_window_layers = 28;
  ExpertKeys experts = ExpertKeys::None;
  HeadNormKind head_norms = HeadNormKind::None;
  NormPosition norms = NormPosition::Pre;
  bool scales_rope = true;       ///< knows our kinds of scaled RoPE
  bool rotates_partly = false;   ///< partial_rotary_factor
  bool has_resid_pdrop = false;  ///< resid_pdrop and embd_pdrop
  /// GeGLU, norms that multiply by 1 + weight, scaled embeddings, tied unless it is said, query_pre_attn_scalar and
  /// soft caps.
  bool is_gemma = false;
  double attn_logit_softcapping = 0, final_logit_softcapping = 0;
};

struct Family {
  HuggingfaceFamily family;
  std::string_view model_type, architecture;
  /// Where the weights lie: what comes before the names outside of the layers, and before the number of one; the output
  /// matrix.
  std::string_view base, layers, output;
  /// The model of a config.json of this type; throws BadInput, naming the key, for what our model cannot express.
  ModelConfig (*parse)(const ConfigJson& config, const Family& family);
  /// The keys that parse reads, for a model that the family can express; of others as much as it can.
  OrderedJson (*write)(const ModelConfig& model, const Family& family);
  LlamaTraits traits = {};
};

/// In the order of the enum.
std::span<const Family> families();
const Family& row_of(HuggingfaceFamily family);
/// By its model_type; null when there is none.
const Family* find_family(std::string_view model_type);
/// "gpt2, llama, ..".
std::string family_names();

}  // namespace mcpp
