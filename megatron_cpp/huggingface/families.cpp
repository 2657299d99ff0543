#include "megatron_cpp/huggingface/families.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/strings.h"
#include "megatron_cpp/huggingface/config_keys.h"

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

/// Returns a family with the keys of deepseek_v3.
constexpr Family deepseek_like(F family, std::string_view model_type, std::string_view architecture,
                               const LlamaTraits& traits) {
  Family row = llama_like(family, model_type, architecture, traits);
  row.parse = parse_deepseek, row.write = write_deepseek;
  return row;
}

/// Returns a llama-like family with other functions for parsing and writing.
constexpr Family with_functions(Family family, decltype(Family::parse) parse, decltype(Family::write) write) {
  family.parse = parse, family.write = write;
  return family;
}

/// Returns a family with Gated DeltaNet and gated attention.
constexpr Family qwen3_next_like(F family, std::string_view model_type, std::string_view architecture,
                                 i64 num_key_value_heads, ExpertKeys experts, const char* prediction_key) {
  return with_functions(llama_like(family, model_type, architecture,
                                   {.max_position_embeddings = 32768,
                                    .num_key_value_heads = num_key_value_heads,
                                    .head_dim = 256,
                                    .experts = experts,
                                    .head_norms = HeadNormKind::EachHead,
                                    .partial_rotary_factor = 0.25,
                                    .linear_layers = LinearLayers::Any,
                                    .prediction = PredictionForm::Module,
                                    .prediction_key = prediction_key}),
                        parse_qwen3_next, write_qwen3_next);
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
    qwen3_next_like(F::Qwen3Next, "qwen3_next", "Qwen3NextForCausalLM", 2, ExpertKeys::Qwen3Next,
                    "num_nextn_predict_layers"),
    qwen3_next_like(F::Qwen35, "qwen3_5_text", "Qwen3_5ForCausalLM", 4, ExpertKeys::None, "mtp_num_hidden_layers"),
    qwen3_next_like(F::Qwen35Moe, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", 2, ExpertKeys::Qwen35Moe,
                    "mtp_num_hidden_layers"),
    llama_like(F::Dots1, "dots1", "Dots1ForCausalLM",
               {.num_key_value_heads = 32,
                .biases = BiasKeys::Attention,
                .windows = WindowKeys::FromLayer,
                .max_window_layers = 62,
                .experts = ExpertKeys::Dots1,
                .head_norms = HeadNormKind::EachHead}),
    deepseek_like(F::DeepSeekV2, "deepseek_v2", "DeepseekV2ForCausalLM",
                  {.experts = ExpertKeys::DeepSeekV2, .q_lora_rank = 1536}),
    deepseek_like(F::DeepSeekV3, "deepseek_v3", "DeepseekV3ForCausalLM",
                  {.max_position_embeddings = 4096,
                   .experts = ExpertKeys::DeepSeekV3,
                   .q_lora_rank = 1536,
                   .prediction = PredictionForm::After}),
    deepseek_like(F::Glm4MoeLite, "glm4_moe_lite", "Glm4MoeLiteForCausalLM",
                  {.max_position_embeddings = 202752,
                   .rms_norm_eps = 1e-5,
                   .experts = ExpertKeys::Glm4MoeLite,
                   .q_lora_rank = 768,
                   .prediction = PredictionForm::After}),
    with_functions(llama_like(F::KimiLinear, "kimi_linear", "KimiLinearForCausalLM",
                              {.max_position_embeddings = 1048576,
                               .rms_norm_eps = 1e-5,
                               .experts = ExpertKeys::KimiLinear,
                               .q_lora_rank = 0,
                               .has_rope = false,
                               .linear_layers = LinearLayers::Any}),
                   parse_kimi_linear, write_kimi_linear),
    llama_like(F::Phi3, "phi3", "Phi3ForCausalLM",
               {.max_position_embeddings = 4096,
                .rms_norm_eps = 1e-5,
                .windows = WindowKeys::All,
                .sliding_window = 0,
                .supports_rope_scaling = false,
                .partial_rotary_factor = 1,
                .has_resid_pdrop = true}),
    llama_like(F::Olmo2, "olmo2", "Olmo2ForCausalLM",
               {.rms_norm_eps = 1e-5,
                .biases = BiasKeys::Attention,
                .head_norms = HeadNormKind::AllHeads,
                .norms = NormPosition::Post}),
    with_functions(llama_like(F::OlmoHybrid, "olmo_hybrid", "OlmoHybridForCausalLM",
                              {.max_position_embeddings = 65536,
                               .biases = BiasKeys::Attention,
                               .head_norms = HeadNormKind::AllHeads,
                               .linear_layers = LinearLayers::Some}),
                   parse_olmo_hybrid, write_olmo_hybrid),
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
    with_functions(llama_like(F::SmolLm3, "smollm3", "SmolLM3ForCausalLM",
                              {.max_position_embeddings = 32768,
                               .num_key_value_heads = 4,
                               .rope_theta = 2e6,
                               .biases = BiasKeys::AttentionMlp,
                               .windows = WindowKeys::NopeIfUsed,
                               .sliding_window = 0,
                               .has_no_rope_layers = true}),
                   parse_smollm3, write_llama),
    with_functions(llama_like(F::GptOss, "gpt_oss", "GptOssForCausalLM",
                              {.max_position_embeddings = 131072,
                               .num_key_value_heads = 8,
                               .head_dim = 64,
                               .rms_norm_eps = 1e-5,
                               .rope_theta = 150000,
                               .biases = BiasKeys::Attention,
                               .windows = WindowKeys::AllButEveryNth,
                               .sliding_window = 128,
                               .window_pattern = 2,
                               .experts = ExpertKeys::GptOss}),
                   parse_gpt_oss, write_gpt_oss),
    with_functions(llama_like(F::Llama4, "llama4_text", "Llama4ForCausalLM",
                              {.max_position_embeddings = 131072,
                               .num_key_value_heads = 8,
                               .head_dim = 128,
                               .rms_norm_eps = 1e-5,
                               .rope_theta = 500000,
                               .biases = BiasKeys::Attention,
                               .experts = ExpertKeys::Llama4,
                               .has_no_rope_layers = true}),
                   parse_llama4, write_llama4),
    {F::GptNeox, "gpt_neox", "GPTNeoXForCausalLM", "gpt_neox.", "layers.", "embed_out", parse_gpt_neox, write_gpt_neox},
    {F::NemotronH,
     "nemotron_h",
     "NemotronHForCausalLM",
     "backbone.",
     "layers.",
     "lm_head",
     parse_nemotron_h,
     write_nemotron_h,
     {.has_layer_pattern = true, .prediction = PredictionForm::Branches}},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

const Family& family_row(HuggingfaceFamily family) {
  return kFamilies[static_cast<std::size_t>(family)];
}

const Family* find_family(std::string_view model_type) {
  if (model_type == "kimi_k2")
    return &family_row(HuggingfaceFamily::DeepSeekV3);  // kimi_k2 uses the class of deepseek_v3
  const auto* it = std::ranges::find(kFamilies, model_type, &Family::model_type);
  return it == std::end(kFamilies) ? nullptr : it;
}

std::string family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.model_type);
  return join(names, ", ");
}

namespace {

/// Name of an activation of an MLP without a gate. If a function has several names, the first is written.
struct ActivationName {
  ActivationFunction function;
  std::string_view name;
};
constexpr ActivationName kActivations[]{{ActivationFunction::Gelu, "gelu_new"},
                                        {ActivationFunction::Gelu, "gelu_pytorch_tanh"},
                                        {ActivationFunction::Gelu, "gelu_fast"},
                                        {ActivationFunction::GeluErf, "gelu"}};

ActivationFunction parse_activation(const ConfigJson& config, const char* key, const char* absent) {
  const std::string name = config.text(key, absent);
  const auto* it = std::ranges::find(kActivations, name, &ActivationName::name);
  config.require(it != std::end(kActivations), key, name, "gelu_new, gelu_pytorch_tanh, gelu_fast, gelu");
  return it->function;
}
std::string_view name_of_activation(ActivationFunction function) {
  const auto* it = std::ranges::find(kActivations, function, &ActivationName::function);
  return it == std::end(kActivations) ? kActivations[0].name : it->name;
}

OrderedJson head_of(const ModelConfig& m, const Family& family) {
  return {{"architectures", OrderedJson::array({family.architecture})},
          {"model_type", family.model_type},
          {"vocab_size", m.vocab_size}};
}
/// Returns the architecture and sizes, with the keys that all types except GPT-2 share.
OrderedJson head_and_sizes_of(const ModelConfig& m, const Family& family) {
  OrderedJson json = head_of(m, family);
  json.update({{"max_position_embeddings", m.max_positions()},
               {"hidden_size", m.hidden_size},
               {"intermediate_size", m.max_ffn()},
               {"num_hidden_layers", m.num_layers},
               {"num_attention_heads", m.num_attention_heads.first()}});
  return json;
}

/// Returns the value of a key, or 0 if it is null.
double number_or_null(const ConfigJson& config, const char* key, double absent) {
  return config.find(key) ? config.number(key) : config.has_key(key) ? 0 : absent;
}
OrderedJson or_null(double number) {
  return number > 0 ? OrderedJson(number) : OrderedJson();
}

void parse_norms(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model) {
  model.normalization = Normalization::RMSNorm;
  model.norm_epsilon = config.number("rms_norm_eps", traits.rms_norm_eps);
  model.norm_position = traits.norms;
  model.apply_layernorm_1p = traits.is_gemma;
  model.qk_layernorm = traits.head_norms != HeadNormKind::None;
  model.qk_layernorm_all_heads = traits.head_norms == HeadNormKind::AllHeads;
}

void parse_biases(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model) {
  const bool has_attention_bias_key = traits.biases == BiasKeys::Attention || traits.biases == BiasKeys::AttentionMlp;
  const bool attention = has_attention_bias_key && config.flag("attention_bias", false),
             mlp = traits.biases == BiasKeys::AttentionMlp && config.flag("mlp_bias", false);
  model.add_bias_linear = attention && mlp;
  if (!model.add_bias_linear) {
    model.add_qkv_bias = model.add_attention_output_bias = attention;
    model.add_mlp_bias = mlp;
  }
  if (traits.biases == BiasKeys::Qkv) model.add_qkv_bias = true;
}

void parse_llama_activation(const ConfigJson& config, ModelConfig& model) {
  model.activation_func = ActivationFunction::SwiGLU;
  const std::string activation = config.text("hidden_act", "silu");
  config.require(activation == "silu" || activation == "swish", "hidden_act", activation, "silu");
}

void parse_gemma(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model) {
  model.activation_func = ActivationFunction::GeGLU;
  const std::string activation = config.text("hidden_activation", "gelu_pytorch_tanh");
  config.require(activation == "gelu_pytorch_tanh", "hidden_activation", activation, "gelu_pytorch_tanh");
  config.require(!config.flag("use_bidirectional_attention", false), "use_bidirectional_attention", "true", "false");
  model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  model.query_pre_attn_scalar = config.number("query_pre_attn_scalar", 256);
  config.require(model.query_pre_attn_scalar > 0, "query_pre_attn_scalar", model.query_pre_attn_scalar, "above 0");
  model.attn_logit_softcapping = number_or_null(config, "attn_logit_softcapping", traits.attn_logit_softcapping);
  model.final_logit_softcapping = number_or_null(config, "final_logit_softcapping", traits.final_logit_softcapping);
}

/// Parses partial_rotary_factor if the type has this key.
void parse_partial_rotary(const ConfigJson& config, const Family& family, ModelConfig& model) {
  std::optional<ConfigJson> rope = config.object("rope_scaling");
  if (!rope) rope = config.object("rope_parameters");
  const bool is_neox = family.family == HuggingfaceFamily::GptNeox;
  const double absent = family.traits.partial_rotary_factor;
  const double default_fraction =
      is_neox ? config.number("rotary_pct", 0.25) : config.number("partial_rotary_factor", absent > 0 ? absent : 1);
  model.rotary_percent = rope ? rope->number("partial_rotary_factor", default_fraction) : default_fraction;
  config.require(is_neox || absent > 0 || model.rotary_percent == 1, "partial_rotary_factor", model.rotary_percent,
                 "1");
  config.require(rotates_pairs(model), "partial_rotary_factor", model.rotary_percent,
                 "a fraction of an even number of channels of a head");
}

/// Parses resid_pdrop and embd_pdrop, which must agree because both map to hidden_dropout.
void parse_dropouts(const ConfigJson& config, double absent, ModelConfig& model) {
  model.hidden_dropout = config.number("resid_pdrop", absent);
  const double embedding = config.number("embd_pdrop", absent);
  config.require(embedding == model.hidden_dropout, "embd_pdrop", embedding, "equal to resid_pdrop");
}

void add_gemma(const ModelConfig& m, OrderedJson& json) {
  json["hidden_activation"] = "gelu_pytorch_tanh";
  const double scalar = m.query_pre_attn_scalar > 0 ? m.query_pre_attn_scalar : static_cast<double>(m.head_dim());
  // transformers requires an integer here.
  const bool is_whole = scalar == std::floor(scalar) && scalar < 1e15;
  json["query_pre_attn_scalar"] = is_whole ? OrderedJson(static_cast<i64>(scalar)) : OrderedJson(scalar);
  json["attn_logit_softcapping"] = or_null(m.attn_logit_softcapping);
  json["final_logit_softcapping"] = or_null(m.final_logit_softcapping);
}

}  // namespace

ModelConfig parse_gpt2(const ConfigJson& config, const Family&) {
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
  model.activation_func = parse_activation(config, "activation_function", "gelu_new");
  parse_dropouts(config, 0.1, model);
  model.attention_dropout = config.number("attn_pdrop", 0.1);
  config.require(config.flag("scale_attn_weights", true), "scale_attn_weights", "false", "true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    config.require(!config.flag(key, false), key, "true", "false");
  }
  return model;
}

OrderedJson write_gpt2(const ModelConfig& m, const Family& family) {
  OrderedJson json = head_of(m, family);
  json.update({{"n_positions", m.max_positions()},
               {"n_embd", m.hidden_size},
               {"n_layer", m.num_layers},
               {"n_head", m.num_attention_heads.first()},
               {"n_inner", m.max_ffn()},
               {"activation_function", name_of_activation(m.activation_func)},
               {"layer_norm_epsilon", m.norm_epsilon},
               {"resid_pdrop", m.hidden_dropout},
               {"embd_pdrop", m.hidden_dropout},
               {"attn_pdrop", m.attention_dropout}});
  return json;
}

ModelConfig parse_gpt_neox(const ConfigJson& config, const Family& family) {
  ModelConfig model;
  model.num_layers = config.integer("num_hidden_layers");
  model.hidden_size = config.integer("hidden_size");
  model.ffn_hidden_size = config.integer("intermediate_size");
  model.num_attention_heads = config.integer("num_attention_heads");
  model.seq_length = model.max_position_embeddings = config.integer("max_position_embeddings", 2048);
  model.vocab_size = config.integer("vocab_size");
  model.norm_epsilon = config.number("layer_norm_eps", 1e-5);
  model.init_method_std = config.number("initializer_range", 0.02);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", false);
  model.activation_func = parse_activation(config, "hidden_act", "gelu");
  model.position_embedding_type = PositionEmbedding::Rope;
  parse_rope(config, family, model);
  parse_partial_rotary(config, family, model);
  model.use_parallel_residual = config.flag("use_parallel_residual", true);
  if (!config.flag("attention_bias", true)) model.add_bias_linear = false, model.add_mlp_bias = true;
  model.hidden_dropout = config.number("hidden_dropout", 0);
  model.attention_dropout = config.number("attention_dropout", 0);
  return model;
}

OrderedJson write_gpt_neox(const ModelConfig& m, const Family& family) {
  OrderedJson json = head_and_sizes_of(m, family);
  json.update({{"hidden_act", name_of_activation(m.activation_func)},
               {"layer_norm_eps", m.norm_epsilon},
               {"rotary_emb_base", m.rotary_base},
               {"rotary_pct", m.rotary_percent},
               {"rope_scaling", rope_scaling_json(m)},
               {"use_parallel_residual", m.use_parallel_residual},
               {"attention_bias", m.qkv_bias()},
               {"hidden_dropout", m.hidden_dropout},
               {"attention_dropout", m.attention_dropout}});
  return json;
}

ModelConfig parse_llama(const ConfigJson& config, const Family& family) {
  const LlamaTraits& traits = family.traits;
  ModelConfig model;
  model.num_layers = config.integer("num_hidden_layers");
  model.hidden_size = config.integer("hidden_size");
  const bool has_dense_layers = traits.experts != ExpertKeys::Qwen35Moe;
  if (has_dense_layers) model.ffn_hidden_size = config.integer("intermediate_size");
  model.num_attention_heads = config.integer("num_attention_heads");
  // Some types accept null, which means num_attention_heads.
  const bool has_own_default = traits.num_key_value_heads > 0 && !config.has_key("num_key_value_heads");
  model.num_query_groups = config.integer(
      "num_key_value_heads", has_own_default ? traits.num_key_value_heads : model.num_attention_heads.first());
  model.kv_channels = config.integer(
      "head_dim", traits.head_dim > 0 ? traits.head_dim : model.hidden_size / model.num_attention_heads.first());
  model.seq_length = model.max_position_embeddings =
      config.integer("max_position_embeddings", traits.max_position_embeddings);
  model.vocab_size = config.integer("vocab_size");
  model.position_embedding_type = PositionEmbedding::Rope;
  parse_rope(config, family, model);
  parse_partial_rotary(config, family, model);
  if (traits.has_no_rope_layers) parse_no_rope_layers(config, model);
  parse_windows(config, traits, model);
  parse_experts(config, traits.experts, model);
  parse_norms(config, traits, model);
  parse_biases(config, traits, model);
  traits.is_gemma ? parse_gemma(config, traits, model) : parse_llama_activation(config, model);
  model.init_method_std = config.number("initializer_range", 0.02);
  model.untie_embeddings_and_output_weights = !config.flag("tie_word_embeddings", traits.is_gemma);
  model.hidden_dropout = 0;
  if (traits.has_resid_pdrop) parse_dropouts(config, 0, model);
  model.attention_dropout = config.number("attention_dropout", 0);
  return model;
}

OrderedJson write_llama(const ModelConfig& m, const Family& family) {
  const LlamaTraits& traits = family.traits;
  OrderedJson json = head_and_sizes_of(m, family);
  json["num_key_value_heads"] = m.query_groups(0);
  json["head_dim"] = m.head_dim();
  if (!traits.is_gemma) json["hidden_act"] = "silu";
  json["rms_norm_eps"] = m.norm_epsilon;
  json["rope_theta"] = m.rotary_base;
  if (traits.rope_local_base_freq > 0)
    json["rope_local_base_freq"] = m.rope_local_base_freq > 0 ? m.rope_local_base_freq : m.rotary_base;
  json["rope_scaling"] = traits.supports_rope_scaling ? rope_scaling_json(m) : OrderedJson();
  if (traits.partial_rotary_factor > 0) json["partial_rotary_factor"] = m.rotary_percent;
  if (traits.biases == BiasKeys::Attention || traits.biases == BiasKeys::AttentionMlp)
    json["attention_bias"] = m.qkv_bias();
  if (traits.biases == BiasKeys::AttentionMlp) json["mlp_bias"] = m.mlp_bias();
  if (traits.has_no_rope_layers) add_no_rope_layers(m, json);
  add_windows(m, traits.windows, json);
  add_experts(m, traits.experts, json);
  if (traits.is_gemma) add_gemma(m, json);
  if (traits.has_resid_pdrop) {
    json["resid_pdrop"] = json["embd_pdrop"] = m.hidden_dropout;
    json["pad_token_id"] = nullptr;  // the default is 32000, even for a smaller vocabulary
  }
  json["attention_dropout"] = m.attention_dropout;
  return json;
}

}  // namespace mcpp
