#include "megatron_cpp/huggingface/huggingface_config.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/json.h"
#include "base/strings.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/expert_keys.h"
#include "megatron_cpp/huggingface/stated_tokens.h"

namespace mcpp {
namespace {

/// Returns every field of a model that is outside of its range, and every violated rule between fields.
std::vector<std::string> find_defects(const ModelConfig& model) {
  std::vector<std::string> defects = model.conflicts();
  const auto visit = [&]<class T>(const char* name, const T& value, const char*, const Constraint& range = {}) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, i64>) {
      if (!range.accepts(static_cast<double>(value))) {
        defects.push_back(str("model.", name, " would be ", value, ", allowed is ", range.describe()));
      }
    }
  };
  ModelConfig::fields(model, visit);
  return defects;
}

/// Returns the keys of a family's config.json that describe the function of a model.
OrderedJson function_json(const ModelConfig& model, const Family& family) {
  OrderedJson json = family.write(model, family);
  json["tie_word_embeddings"] = !model.untie_embeddings_and_output_weights;
  json["initializer_range"] = model.init_method_std;
  return json;
}

/// Returns for each layer whether `has` holds, or an empty list if it holds for none.
template <class F>
std::vector<i64> layers_with(const ModelConfig& m, F&& has) {
  std::vector<i64> layers;
  for (i64 layer = 0; layer < m.num_layers; ++layer) layers.push_back(has(layer) ? 1 : 0);
  if (std::ranges::count(layers, 1) == 0) layers.clear();
  return layers;
}

void resolve_experts(ModelConfig& m) {
  const MoeConfig given = m.moe;
  const std::vector<i64> layers = layers_with(m, [&](i64 layer) { return given.has_experts(layer); });
  m.moe.ffn_hidden_size = m.moe_ffn();
  m.moe.router_topk_scaling_factor = given.routing().scale;
  if (std::ranges::count(layers, 0) == 0) m.ffn_hidden_size = 0;  // no layer has a dense MLP
  m.moe.layer_freq = layers;
}

/// Returns `m` in a canonical form, without settings that do not change its function.
ModelConfig canonical_form(ModelConfig m) {
  const ModelConfig defaults, given = m;
  m.ffn_hidden_size = given.ffn();
  m.num_query_groups = given.query_groups();
  m.kv_channels = given.head_dim();
  m.max_position_embeddings = m.seq_length = given.max_positions();
  m.make_vocab_size_divisible_by = defaults.make_vocab_size_divisible_by;
  m.query_pre_attn_scalar =
      given.query_pre_attn_scalar > 0 ? given.query_pre_attn_scalar : static_cast<double>(given.head_dim());
  m.add_bias_linear = false;
  m.add_qkv_bias = given.qkv_bias();
  m.add_attention_output_bias = given.attention_output_bias();
  m.add_mlp_bias = given.mlp_bias();
  m.window_attn_skip_freq = layers_with(m, [&](i64 layer) { return given.window_of(layer) > 0; });
  if (m.window_attn_skip_freq.empty()) m.window_size.clear();
  const bool scales = m.rope_scaling.type == RopeScalingType::Yarn || m.rope_scaling.type == RopeScalingType::Llama3;
  if (scales) m.rope_scaling.original_max_position_embeddings = m.rope_scaling.original_context(m.max_positions());
  if (m.rope_local_base_freq == m.rotary_base && m.rope_scaling.type == RopeScalingType::None)
    m.rope_local_base_freq = 0;
  m.hidden_dropout = m.attention_dropout = m.init_method_std = 0;
  m.moe.router_load_balancing_type = defaults.moe.router_load_balancing_type;
  m.moe.router_bias_update_rate = m.moe.aux_loss_coeff = m.moe.z_loss_coeff = m.moe.input_jitter_eps = 0;
  m.moe.router_force_load_balancing = m.moe.pad_expert_input_to_capacity = false;
  m.moe.expert_capacity_factor = 0;  // tokens are dropped in training only
  m.moe.token_drop_policy = defaults.moe.token_drop_policy;
  m.moe.num_experts > 0 ? resolve_experts(m) : void(m.moe = {});
  return m;
}

/// Returns the keys of a model with their values as text, for comparison.
std::vector<std::pair<std::string, std::string>> key_texts(const ModelConfig& model) {
  std::vector<std::pair<std::string, std::string>> texts;
  const auto visit = [&]<class T>(const char* name, const T& value, const char*, const Constraint& = {}) {
    std::string text;
    if constexpr (is_vector<T>::value) {
      for (const auto& x : value) text += str(x, " ");
    } else if constexpr (std::is_enum_v<T>) {
      text = enum_name(value);
    } else if constexpr (std::is_same_v<T, double>) {
      text = str(std::bit_cast<u64>(value));
    } else {
      text = str(value);
    }
    texts.emplace_back(str("model.", name), text);
  };
  ModelConfig::fields(model, visit);
  return texts;
}

/// Returns the keys that prevent a model from being expressed by a family: those that a round trip would change.
std::vector<std::string> obstacles(ModelConfig model, const Family& family) {
  const bool wants_experts = family.traits.experts != ExpertKeys::None;
  if (wants_experts != (model.moe.num_experts > 0)) return {"model.num_experts"};
  if (const std::vector<std::string> unsupported = unsupported_expert_options(model, family.traits.experts);
      !unsupported.empty())
    return unsupported;
  model.vocab_size = std::max<i64>(model.vocab_size, 1);
  const Json json = Json::parse(function_json(model, family).dump());
  const auto expected = key_texts(canonical_form(model)),
             actual = key_texts(canonical_form(family.parse(ConfigJson(json, "config.json"), family)));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i].second != actual[i].second) names.push_back(expected[i].first);
  return names;
}

}  // namespace

const Family& exporting_family(const ModelConfig& model, std::string_view model_type) {
  std::vector<std::string> reasons;
  for (const Family& candidate : families()) {
    if (!model_type.empty() && candidate.model_type != model_type) continue;
    const std::vector<std::string> unsupported = obstacles(model, candidate);
    if (unsupported.empty()) return candidate;
    reasons.push_back(str(candidate.model_type, " needs other values of ", join(unsupported, ", ")));
  }
  check_input(!reasons.empty(), "\"", model_type, "\" is none of the model types ", family_names());
  fail(ExitCode::BadInput, "no Hugging Face model type can express this model: ", join(reasons, "; "));
}

const Family& family_of_config(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const ConfigJson config(json, source);
  const std::string type = config.text("model_type", "none");
  const Family* family = find_family(type);
  config.require(family, "model_type", type, family_names().c_str());
  return *family;
}

ModelConfig parse_huggingface_config(std::string_view text, const std::string& source) {
  const Family& family = family_of_config(text, source);
  const Json json = parse_json(text, source);
  ModelConfig model = family.parse(ConfigJson(json, source), family);
  const std::vector<std::string> defects = find_defects(model);
  check_input(defects.empty(), source, ": ", join(defects, "; "));
  return model;
}

std::string huggingface_config(const ModelConfig& model, const Family& family, DType dtype,
                               const SpecialTokens& tokens) {
  OrderedJson json = function_json(model, family);
  json["torch_dtype"] = dtype == DType::BF16  ? "bfloat16"
                        : dtype == DType::F16 ? "float16"
                        : dtype == DType::F64 ? "float64"
                                              : "float32";
  json["bos_token_id"] = tokens.bos ? OrderedJson(*tokens.bos) : OrderedJson();
  json["eos_token_id"] = tokens.eos ? OrderedJson(*tokens.eos) : OrderedJson();
  json.update(stated_members(tokens, "config.json"));
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace mcpp
