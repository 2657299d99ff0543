#include "megatron_cpp/huggingface/huggingface_config.h"

#include <algorithm>

#include "base/json/json.h"
#include "megatron_cpp/huggingface/attention_keys.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/expert_keys.h"

namespace mcpp {
namespace {

struct Family {
  HuggingfaceFamily family;
  std::string_view model_type, architecture;
};
/// In the order of the enum, which is that of preference.
constexpr Family kFamilies[]{{HuggingfaceFamily::Gpt2, "gpt2", "GPT2LMHeadModel"},
                             {HuggingfaceFamily::Llama, "llama", "LlamaForCausalLM"},
                             {HuggingfaceFamily::Mistral, "mistral", "MistralForCausalLM"},
                             {HuggingfaceFamily::Ministral, "ministral", "MinistralForCausalLM"},
                             {HuggingfaceFamily::Qwen2, "qwen2", "Qwen2ForCausalLM"},
                             {HuggingfaceFamily::Mixtral, "mixtral", "MixtralForCausalLM"},
                             {HuggingfaceFamily::Qwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM"}};

/// Mistral and what is mistral else.
bool is_of_mistral(HuggingfaceFamily family) {
  return family == HuggingfaceFamily::Mistral || family == HuggingfaceFamily::Ministral ||
         family == HuggingfaceFamily::Mixtral;
}

ModelConfig parse_gpt2(const ConfigJson& config) {
  ModelConfig model;
  model.num_layers = config.integer("n_layer");
  model.hidden_size = config.integer("n_embd");
  model.num_attention_heads = config.integer("n_head");
  model.seq_length = model.max_position_embeddings = config.integer("n_positions");
  model.ffn_hidden_size = config.integer("n_inner", 4 * model.hidden_size);
  model.vocab_size = config.integer("vocab_size");
  model.norm_epsilon = config.number("layer_norm_epsilon", 1e-5);
  model.init_method_std = config.number("initializer_range", 0.02);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", true);

  const std::string activation = config.text("activation_function", "gelu_new");
  const bool is_tanh = activation == "gelu_new" || activation == "gelu_pytorch_tanh";
  config.require(is_tanh || activation == "gelu", "activation_function", activation, "gelu_new, gelu");
  model.activation_func = is_tanh ? ActivationFunction::Gelu : ActivationFunction::GeluErf;

  model.hidden_dropout = config.number("resid_pdrop", 0.1);
  model.attention_dropout = config.number("attn_pdrop", 0.1);
  const double embedding = config.number("embd_pdrop", 0.1);
  config.require(embedding == model.hidden_dropout, "embd_pdrop", embedding, "the same as resid_pdrop");
  config.require(config.flag("scale_attn_weights", true), "scale_attn_weights", "false", "true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    config.require(!config.flag(key, false), key, "true", "false");
  }
  return model;
}

/// Llama and its kin, which differ in biases and windows.
ModelConfig parse_llama(const ConfigJson& config, HuggingfaceFamily family) {
  const bool is_mistral = is_of_mistral(family);
  ModelConfig model;
  model.num_layers = config.integer("num_hidden_layers");
  model.hidden_size = config.integer("hidden_size");
  model.ffn_hidden_size = config.integer("intermediate_size");
  model.num_attention_heads = config.integer("num_attention_heads");
  const bool has_eight = is_mistral && !config.states("num_key_value_heads");
  model.num_query_groups = config.integer("num_key_value_heads", has_eight ? 8 : model.num_attention_heads);
  model.kv_channels = config.integer("head_dim", model.hidden_size / model.num_attention_heads);
  const i64 longest = is_mistral ? 131072 : is_of_qwen2(family) ? 32768 : 2048;
  model.seq_length = model.max_position_embeddings = config.integer("max_position_embeddings", longest);
  model.vocab_size = config.integer("vocab_size");
  model.position_embedding_type = PositionEmbedding::Rope;
  parse_rope(config, model);
  parse_windows(config, family, model);
  parse_experts(config, family, model);
  model.normalization = Normalization::RMSNorm;
  model.norm_epsilon = config.number("rms_norm_eps", family == HuggingfaceFamily::Mixtral ? 1e-5 : 1e-6);
  model.activation_func = ActivationFunction::SwiGLU;
  model.init_method_std = config.number("initializer_range", 0.02);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", false);
  model.hidden_dropout = 0;
  model.attention_dropout = config.number("attention_dropout", 0);

  const std::string activation = config.text("hidden_act", "silu");
  config.require(activation == "silu" || activation == "swish", "hidden_act", activation, "silu");
  const bool is_llama = family == HuggingfaceFamily::Llama;  // the others have no choice
  const bool attention_bias = is_llama && config.flag("attention_bias", false),
             mlp_bias = is_llama && config.flag("mlp_bias", false);
  model.add_bias_linear = attention_bias && mlp_bias;
  if (!model.add_bias_linear) {
    model.add_qkv_bias = model.add_attention_output_bias = attention_bias;
    model.add_mlp_bias = mlp_bias;
  }
  if (is_of_qwen2(family)) model.add_qkv_bias = true;
  return model;
}

/// Every field of a model that lies outside its range, and every rule between fields that does not hold.
std::vector<std::string> defects_of(const ModelConfig& model) {
  std::vector<std::string> found = model.conflicts();
  const auto visit = [&]<class T>(const char* name, const T& value, const char*, const Constraint& range = {}) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, i64>) {
      if (!range.accepts(static_cast<double>(value))) {
        found.push_back(str("model.", name, " would be ", value, ", allowed is ", range.describe()));
      }
    }
  };
  ModelConfig::fields(model, visit);
  return found;
}

/// What keeps a model from being of a family, as names of keys.
std::vector<std::string> obstacles(const ModelConfig& m, HuggingfaceFamily family) {
  std::vector<std::string> found;
  const auto need = [&](bool holds, const char* key) {
    if (!holds) found.push_back(str("model.", key));
  };
  if (family == HuggingfaceFamily::Gpt2) {
    need(m.position_embedding_type == PositionEmbedding::LearnedAbsolute, "position_embedding_type");
    need(m.normalization == Normalization::LayerNorm, "normalization");
    need(m.activation_func == ActivationFunction::Gelu || m.activation_func == ActivationFunction::GeluErf,
         "activation_func");
    need(m.qkv_bias(), "add_qkv_bias");
    need(m.attention_output_bias(), "add_attention_output_bias");
    need(m.mlp_bias(), "add_mlp_bias");
    need(m.query_groups() == m.num_attention_heads, "num_query_groups");
    need(m.head_dim() * m.num_attention_heads == m.hidden_size, "kv_channels");
    need(count_windows(m) == 0, "window_size");
  } else {
    need(m.position_embedding_type == PositionEmbedding::Rope, "position_embedding_type");
    need(m.rotary_percent == 1, "rotary_percent");
    need(m.normalization == Normalization::RMSNorm, "normalization");
    need(m.activation_func == ActivationFunction::SwiGLU, "activation_func");
    const bool is_llama = family == HuggingfaceFamily::Llama, is_qwen2 = is_of_qwen2(family);
    need(is_llama || m.qkv_bias() == is_qwen2, "add_qkv_bias");
    need(is_llama ? m.qkv_bias() == m.attention_output_bias() : !m.attention_output_bias(),
         "add_attention_output_bias");
    need(is_llama || !m.mlp_bias(), "add_mlp_bias");
    need(!is_llama || count_windows(m) == 0, "window_size");
    need(family != HuggingfaceFamily::Mistral || count_windows(m) == m.num_layers, "window_attn_skip_freq");
    need(family != HuggingfaceFamily::Mixtral || count_windows(m) == 0 || count_windows(m) == m.num_layers,
         "window_attn_skip_freq");
  }
  const std::vector<std::string> of_experts = expert_obstacles(m, family);
  found.insert(found.end(), of_experts.begin(), of_experts.end());
  return found;
}

OrderedJson gpt2_json(const ModelConfig& m) {
  return {{"architectures", OrderedJson::array({"GPT2LMHeadModel"})},
          {"model_type", "gpt2"},
          {"vocab_size", m.vocab_size},
          {"n_positions", m.max_positions()},
          {"n_embd", m.hidden_size},
          {"n_layer", m.num_layers},
          {"n_head", m.num_attention_heads},
          {"n_inner", m.ffn()},
          {"activation_function", m.activation_func == ActivationFunction::Gelu ? "gelu_new" : "gelu"},
          {"layer_norm_epsilon", m.norm_epsilon},
          {"resid_pdrop", m.hidden_dropout},
          {"embd_pdrop", m.hidden_dropout},
          {"attn_pdrop", m.attention_dropout}};
}

OrderedJson llama_json(const ModelConfig& m, HuggingfaceFamily family) {
  const Family& names = kFamilies[static_cast<std::size_t>(family)];
  OrderedJson json{{"architectures", OrderedJson::array({names.architecture})},
                   {"model_type", names.model_type},
                   {"vocab_size", m.vocab_size},
                   {"max_position_embeddings", m.max_positions()},
                   {"hidden_size", m.hidden_size},
                   {"intermediate_size", m.ffn()},
                   {"num_hidden_layers", m.num_layers},
                   {"num_attention_heads", m.num_attention_heads},
                   {"num_key_value_heads", m.query_groups()},
                   {"head_dim", m.head_dim()},
                   {"hidden_act", "silu"},
                   {"rms_norm_eps", m.norm_epsilon},
                   {"rope_theta", m.rotary_base},
                   {"rope_scaling", rope_scaling_json(m)}};
  if (family == HuggingfaceFamily::Llama) {
    json["attention_bias"] = m.qkv_bias();
    json["mlp_bias"] = m.mlp_bias();
  } else {
    add_windows(m, family, json);
  }
  add_experts(m, family, json);
  json["attention_dropout"] = m.attention_dropout;
  return json;
}

}  // namespace

HuggingfaceFamily huggingface_family(const ModelConfig& model) {
  std::vector<std::string> reasons;
  for (const Family& candidate : kFamilies) {
    const std::vector<std::string> found = obstacles(model, candidate.family);
    if (found.empty()) return candidate.family;
    reasons.push_back(str(candidate.model_type, " needs other values of ", join(found, ", ")));
  }
  fail(ExitCode::BadInput, "no Hugging Face model type can express this model: ", join(reasons, "; "));
}

ModelConfig parse_huggingface_config(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const ConfigJson config(json, source);
  const std::string type = config.text("model_type", "none");
  const auto* found = std::ranges::find(kFamilies, type, &Family::model_type);
  config.require(found != std::end(kFamilies), "model_type", type,
                 "gpt2, llama, mistral, ministral, qwen2, mixtral, qwen2_moe");
  const ModelConfig model =
      found->family == HuggingfaceFamily::Gpt2 ? parse_gpt2(config) : parse_llama(config, found->family);
  const std::vector<std::string> defects = defects_of(model);
  check_input(defects.empty(), source, ": ", join(defects, "; "));
  return model;
}

std::string huggingface_config(const ModelConfig& model, DType dtype, const SpecialTokens& tokens) {
  const HuggingfaceFamily family = huggingface_family(model);
  OrderedJson json = family == HuggingfaceFamily::Gpt2 ? gpt2_json(model) : llama_json(model, family);
  json["tie_word_embeddings"] = !model.untie_embeddings_and_output_weights;
  json["initializer_range"] = model.init_method_std;
  json["torch_dtype"] = dtype == DType::BF16  ? "bfloat16"
                        : dtype == DType::F16 ? "float16"
                        : dtype == DType::F64 ? "float64"
                                              : "float32";
  json["bos_token_id"] = tokens.bos ? OrderedJson(*tokens.bos) : OrderedJson();
  json["eos_token_id"] = tokens.eos ? OrderedJson(*tokens.eos) : OrderedJson();
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace mcpp
