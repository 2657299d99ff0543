#include "megatron_cpp/huggingface/huggingface_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/json.h"
#include "base/strings.h"
#include "megatron_cpp/huggingface/config_json.h"
#include "megatron_cpp/huggingface/config_keys.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

constexpr std::array<const char*, 3> kConfigKeys{"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr std::array<const char*, 12> kTokenizerKeys{"bos_token",
                                                     "eos_token",
                                                     "unk_token",
                                                     "pad_token",
                                                     "sep_token",
                                                     "cls_token",
                                                     "mask_token",
                                                     "additional_special_tokens",
                                                     "extra_special_tokens",
                                                     "chat_template",
                                                     "padding_side",
                                                     "add_eos_token"};

/// Parses a JSON file of transformers. Converts Python's Infinity to the object that transformers 5 writes instead.
Json parse_config(std::string_view text, const std::string& source) {
  constexpr std::string_view kInfinity = "Infinity";
  std::string standard;
  bool is_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_string && text.substr(i).starts_with(kInfinity)) {
      standard += R"({"__float__": "Infinity"})";
      i += kInfinity.size() - 1;
      continue;
    }
    standard += text[i];
    if (text[i] == '"') is_string = !is_string;
    if (is_string && text[i] == '\\' && i + 1 < text.size()) standard += text[++i];
  }
  return parse_json(standard, source);
}

/// JSON file of a folder. A missing file has no members.
struct StatedFile {
  StatedFile(const Path& folder, const char* name) : source((folder / name).string()) {
    if (std::filesystem::exists(folder / name)) json = parse_config(read_text_file(folder / name), source);
  }

  /// Returns the member, or nullptr if it is absent.
  const Json& at(const char* key) const {
    static const Json none;
    const auto it = json.find(key);
    return it == json.end() ? none : *it;
  }
  bool has_key(const char* key) const { return json.contains(key); }

  std::string source;
  Json json = Json::object();
};

/// Returns one id or a list of ids. Omits ids outside of the vocabulary, which transformers writes as the defaults of
/// other models.
std::vector<i64> ids_of(const StatedFile& file, const char* key, i64 vocab_size) {
  const Json& value = file.at(key);
  std::vector<i64> ids;
  if (value.is_null()) return ids;
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    check_input(id.is_number_integer(), file.source, ": '", key, "' is ", value.dump(),
                "; it must be a token id, a list of token ids, or null");
    if (id.get<i64>() >= 0 && id.get<i64>() < vocab_size) ids.push_back(id.get<i64>());
  }
  return ids;
}

/// Returns the name of a token: a string, or an object with "content".
std::string token_name(const Json& value, const StatedFile& file, const char* key) {
  const bool is_object = value.is_object() && value.contains("content") && value["content"].is_string();
  check_input(value.is_string() || is_object, file.source, ": '", key, "' is ", value.dump(),
              "; it must be a token, an object with its 'content', or null");
  return is_object ? value["content"].get<std::string>() : value.get<std::string>();
}

/// Returns the default token of a transformers tokenizer class, for files that state none. "" = no default.
std::string_view default_token(const std::string& tokenizer_class, bool is_bos) {
  const auto is_class = [&](std::string_view name) { return tokenizer_class.starts_with(name); };
  if (is_class("LlamaTokenizer") || is_class("CodeLlamaTokenizer")) return is_bos ? "<s>" : "</s>";
  if (is_class("GemmaTokenizer")) return is_bos ? "<bos>" : "<eos>";
  if (is_class("GPT2Tokenizer") || is_class("GPTNeoXTokenizer")) return "<|endoftext|>";
  return is_class("Qwen2Tokenizer") && !is_bos ? "<|endoftext|>" : "";
}

/// Returns the id of bos_token or eos_token. The tokenizer's files take precedence over config.json, even if they state
/// null.
std::optional<i64> id_of_token(const char* key, const StatedFile& tokenizer_config, const StatedFile& special_map,
                               const Tokenizer* tokenizer, const std::vector<i64>& config_ids) {
  const StatedFile* file = tokenizer_config.has_key(key) ? &tokenizer_config
                           : special_map.has_key(key)    ? &special_map
                                                         : nullptr;
  std::string name;
  const Json& type = tokenizer_config.at("tokenizer_class");
  if (file) {
    if (file->at(key).is_null()) return std::nullopt;
    name = token_name(file->at(key), *file, key);
  } else if (type.is_string()) {
    name = default_token(type.get<std::string>(), std::string_view(key) == "bos_token");
    if (name.empty()) return std::nullopt;
  }
  if (name.empty() || !tokenizer) return config_ids.empty() ? std::nullopt : std::optional(config_ids.front());
  const i32 id = tokenizer->id(name);
  check_input(id >= 0 || !file, file ? file->source : "", ": '", key, "' is \"", name,
              "\", which the tokenizer does not have");
  return id >= 0 ? std::optional<i64>(id) : std::nullopt;
}

/// Returns the id that a post-processor of `tokenizers` adds before a text, if any.
std::optional<i64> template_prefix(const Json& processor, const std::string& source) {
  if (!processor.is_object()) return std::nullopt;
  const JsonObject object(processor, source);
  if (object.find("processors")) {
    for (const Json& part : object.array("processors"))
      if (const auto id = template_prefix(part, source)) return id;
  }
  if (!object.find("single") || !object.array("single").is_array()) return std::nullopt;
  const Json& parts = object.array("single");
  if (parts.empty() || !parts[0].is_object() || !parts[0].contains("SpecialToken")) return std::nullopt;
  const std::string name = JsonObject(parts[0], source).object("SpecialToken").text("id");
  const std::vector<i64> ids = object.object("special_tokens").object(name).integers("ids", 16);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

/// Sets adds_bos from the template of tokenizer.json. Without this file, uses add_bos_token, which transformers
/// otherwise ignores.
void read_adds_bos(const Path& folder, const StatedFile& tokenizer_config, i64 vocab_size, SpecialTokens& tokens) {
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    const StatedFile file(folder, "tokenizer.json");
    const std::optional<i64> prefix = template_prefix(file.at("post_processor"), file.source + ": 'post_processor'");
    tokens.adds_bos = prefix && *prefix < vocab_size;
    if (tokens.adds_bos) tokens.bos = prefix;
    return;
  }
  const Json& stated = tokenizer_config.at("add_bos_token");
  check_input(stated.is_null() || stated.is_boolean(), tokenizer_config.source, ": 'add_bos_token' is ", stated.dump(),
              "; it must be true or false");
  tokens.adds_bos = tokens.bos && stated.is_boolean() && stated.get<bool>();
}

template <std::size_t n>
OrderedJson members(const StatedFile& file, const std::array<const char*, n>& keys) {
  auto json = OrderedJson::object();
  for (const char* key : keys)
    if (file.has_key(key)) json[key] = file.at(key);
  return json;
}

}  // namespace

SpecialTokens read_stated_tokens(const Path& folder, const Tokenizer* tokenizer, i64 vocab_size) {
  const StatedFile config(folder, "config.json"), generation(folder, "generation_config.json"),
      tokenizer_config(folder, "tokenizer_config.json"), special_map(folder, "special_tokens_map.json");
  const std::vector<i64> config_bos = ids_of(config, "bos_token_id", vocab_size),
                         config_eos = ids_of(config, "eos_token_id", vocab_size);
  SpecialTokens tokens;
  tokens.bos = id_of_token("bos_token", tokenizer_config, special_map, tokenizer, config_bos);
  tokens.eos = id_of_token("eos_token", tokenizer_config, special_map, tokenizer, config_eos);
  tokens.stop = ids_of(generation, "eos_token_id", vocab_size);
  if (tokens.stop.empty()) tokens.stop = config_eos;
  read_adds_bos(folder, tokenizer_config, vocab_size, tokens);
  tokens.files["config.json"] = members(config, kConfigKeys).dump();
  if (!generation.json.empty()) tokens.files["generation_config.json"] = generation.json.dump();
  OrderedJson tokenizer_members = members(special_map, kTokenizerKeys);
  tokenizer_members.update(members(tokenizer_config, kTokenizerKeys));
  if (!tokenizer_members.empty()) tokens.files["tokenizer_config.json"] = tokenizer_members.dump();
  const Path chat_template = folder / "chat_template.jinja";
  if (std::filesystem::exists(chat_template)) tokens.files["chat_template.jinja"] = read_text_file(chat_template);
  return tokens;
}

OrderedJson stated_members(const SpecialTokens& tokens, const char* file) {
  const auto it = tokens.files.find(file);
  return it == tokens.files.end() ? OrderedJson::object() : OrderedJson::parse(it->second);
}

namespace {

/// Returns a message for every field outside of its range and every violated rule between fields.
std::vector<std::string> find_defects(const ModelConfig& model) {
  std::vector<std::string> defects = model.conflicts();
  const auto visit = [&]<class T>(const char* name, const T& value, const char*, const Constraint& range = {}) {
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, i64>) {
      if (!range.accepts(static_cast<double>(value))) {
        defects.push_back(str("model.", name, " would be ", value, "; it must be ", range.describe()));
      }
    }
  };
  ModelConfig::fields(model, visit);
  return defects;
}

/// Returns the keys of config.json that determine the outputs of the model.
OrderedJson function_json(const ModelConfig& model, const Family& family) {
  OrderedJson json = family.write(model, family);
  add_prediction_layers(model, family.traits, json);
  json["tie_word_embeddings"] = !model.untie_embeddings_and_output_weights;
  json["initializer_range"] = model.init_method_std;
  return json;
}

/// Returns the model of a config.json with the given number of layers for multi-token prediction, or the stated one.
ModelConfig parse_model(const ConfigJson& config, const Family& family, std::optional<i64> prediction_layers = {}) {
  const i64 stated = parse_prediction_layers(config, family.traits).value_or(0);
  if (!prediction_layers) check_prediction_layers(config, family.traits, stated);
  ModelConfig model = family.parse(config, family);
  set_prediction_layers(model, family.traits, prediction_layers.value_or(stated));
  return model;
}

/// Returns 1 or 0 per layer for the result of `has`, or an empty list if it is false for all layers.
template <class F>
std::vector<i64> layers_with(const ModelConfig& m, F&& has) {
  std::vector<i64> layers;
  for (i64 layer = 0; layer < m.num_layers; ++layer) layers.push_back(has(layer) ? 1 : 0);
  if (std::ranges::count(layers, 1) == 0) layers.clear();
  return layers;
}

void resolve_experts(ModelConfig& m) {
  const MoeConfig given = m.moe;
  const std::vector<i64> layers = layers_with(m, [&](i64 layer) { return block_spec(m, layer).moe() != nullptr; });
  m.moe.ffn_hidden_size = m.moe_ffn();
  m.moe.router_topk_scaling_factor = given.routing().scale;
  if (given.router_num_groups > 0) m.moe.router_group_score_topk = given.routing().scores_per_group();
  const std::vector<BlockSpec> blocks = block_specs(m);
  if (std::ranges::none_of(blocks, [](const BlockSpec& block) { return block.mlp(); })) m.ffn_hidden_size = 0;
  m.moe.layer_freq = layers;
}

/// Returns `m` in a canonical form: settings that do not change the outputs of the model have fixed values.
ModelConfig canonical_form(ModelConfig m) {
  const ModelConfig defaults, given = m;
  resolve_sizes(m);
  m.kv_channels = given.head_dim();
  m.max_position_embeddings = m.seq_length = given.max_positions();
  m.make_vocab_size_divisible_by = defaults.make_vocab_size_divisible_by;
  m.query_pre_attn_scalar =
      given.query_pre_attn_scalar > 0 ? given.query_pre_attn_scalar : static_cast<double>(given.head_dim());
  m.add_bias_linear = false;
  m.add_qkv_bias = given.qkv_bias();
  m.add_attention_output_bias = given.attention_output_bias();
  m.add_mlp_bias = given.mlp_bias();
  m.window_attn_skip_freq = layers_with(m, [&](i64 layer) {
    const std::optional<AttentionSpec> attention = block_spec(given, layer).core_attention();
    return attention && attention->window > 0;
  });
  if (m.window_attn_skip_freq.empty()) m.window_size.clear();
  if (m.mla.is_used && m.mla.latent_norm_epsilon == 0) m.mla.latent_norm_epsilon = m.norm_epsilon;
  const bool scales = m.rope_scaling.type == RopeScalingType::Yarn || m.rope_scaling.type == RopeScalingType::Llama3;
  if (scales) m.rope_scaling.original_max_position_embeddings = m.rope_scaling.original_context(m.max_positions());
  if (m.rope_local_base_freq == m.rotary_base && m.rope_scaling.type == RopeScalingType::None)
    m.rope_local_base_freq = 0;
  const auto lacks_rope = [&](i64 layer) {
    const std::optional<AttentionSpec> attention = block_spec(given, layer).core_attention();
    return attention && attention->rope == RotaryKind::None;
  };
  if (m.position_embedding_type == PositionEmbedding::Rope) m.no_rope_freq = layers_with(m, lacks_rope);
  if (!m.no_rope_freq.empty() && std::ranges::count(m.no_rope_freq, 0) == 0)  // no layer has RoPE
    m.attention_chunk_size = 0, m.qk_l2_norm = false;
  m.attention_output_gate = layers_with(m, [&](i64 layer) {
    const BlockSpec block = block_spec(given, layer);
    return block.attention() && block.attention()->has_output_gate;
  });
  m.post_norm_freq = layers_with(m, [&](i64 layer) {
    return given.norm_position == NormPosition::Pre && block_spec(given, layer).norm_position == NormPosition::Post;
  });
  if (!given.recurrent.linear_attention_freq.empty() && m.recurrent.linear_norm_epsilon == 0)
    m.recurrent.linear_norm_epsilon = m.norm_epsilon;
  if (m.hybrid_layer_pattern.empty())
    m.recurrent.linear_attention_freq =
        layers_with(m, [&](i64 layer) { return block_spec(given, layer).recurrent() != nullptr; });
  if (m.hybrid_layer_pattern.find('M') != std::string::npos)
    m.recurrent.mamba_num_heads = given.recurrent.mamba_heads(given.hidden_size);
  m.mtp_hybrid_layer_pattern.clear();  // unsupported_keys() compares the blocks
  m.mtp_loss_scaling_factor = defaults.mtp_loss_scaling_factor;
  m.hidden_dropout = m.attention_dropout = m.init_method_std = m.embedding_init_method_std = 0;
  m.output_z_loss_coeff = 0;
  m.moe.router_dtype = defaults.moe.router_dtype;
  m.moe.router_load_balancing_type = defaults.moe.router_load_balancing_type;
  m.moe.aux_loss_coeff = 0;
  m.moe.router_bias_update_rate = m.moe.z_loss_coeff = m.moe.input_jitter_eps = 0;
  m.moe.router_force_load_balancing = m.moe.pad_expert_input_to_capacity = false;
  m.moe.expert_capacity_factor = 0;  // only training drops tokens
  m.moe.token_drop_policy = defaults.moe.token_drop_policy;
  m.moe.num_experts > 0 ? resolve_experts(m) : void(m.moe = {});
  return m;
}

/// Returns a text that differs for different values.
template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(enum_name(value));
  else if constexpr (std::is_same_v<T, double>)
    return str(std::bit_cast<u64>(value));
  else
    return str(value);
}

/// Returns the configuration keys of a model and their values as text.
std::vector<std::pair<std::string, std::string>> key_texts(const ModelConfig& model) {
  std::vector<std::pair<std::string, std::string>> texts;
  const auto visit = [&]<class T>(const char* name, const T& value, const char*, const Constraint& = {}) {
    std::string text;
    if constexpr (is_one_or_list<T>::value) {
      for (const auto& x : value.values()) text += str(text_of(x), " ");
    } else if constexpr (is_vector<T>::value) {
      for (const auto& x : value) text += str(x, " ");
    } else {
      text = text_of(value);
    }
    texts.emplace_back(str("model.", name), text);
  };
  ModelConfig::fields(model, visit);
  return texts;
}

}  // namespace

// These are the keys that a round trip through config.json changes.
std::vector<std::string> unsupported_keys(ModelConfig model, const Family& family) {
  const bool has_pattern = family.traits.has_layer_pattern;
  if (has_pattern == model.hybrid_layer_pattern.empty()) return {"model.hybrid_layer_pattern"};
  if (!supports_linear_layers(model, family.traits.linear_layers)) return {"model.linear_attention_freq"};
  if (!rotates_pairs(model)) return {"model.rotary_percent"};
  if (model.mla.is_used != has_latent_attention(family)) return {"model.multi_latent_attention"};
  const bool needs_experts = family.traits.experts != ExpertKeys::None;
  if (!has_pattern && needs_experts != (model.moe.num_experts > 0)) return {"model.num_experts"};
  if (const std::vector<std::string> unsupported =
          has_pattern ? unsupported_hybrid_options(model) : unsupported_expert_options(model, family.traits.experts);
      !unsupported.empty())
    return unsupported;
  model.vocab_size = std::max<i64>(model.vocab_size, 1);
  const Json json = Json::parse(function_json(model, family).dump());
  const ModelConfig parsed = parse_model(ConfigJson(json, "config.json"), family);
  const auto expected = key_texts(canonical_form(model)), actual = key_texts(canonical_form(parsed));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i].second != actual[i].second) names.push_back(expected[i].first);
  if (names.empty() && model.mtp_num_layers > 0 &&
      block_spec(model, model.num_layers) != block_spec(parsed, parsed.num_layers))
    names.emplace_back("model.mtp_hybrid_layer_pattern");
  return names;
}

namespace {

/// Returns the first family of `model_type`, or of any model type if it is empty, that can express the model. Returns
/// nullptr if there is none. Appends to `reasons` the keys that each rejected family cannot express.
const Family* find_exporting_family(const ModelConfig& model, std::string_view model_type,
                                    std::vector<std::string>& reasons) {
  for (const Family& candidate : families()) {
    if (!model_type.empty() && candidate.model_type != model_type) continue;
    const std::vector<std::string> unsupported = unsupported_keys(model, candidate);
    if (unsupported.empty()) return &candidate;
    reasons.push_back(str(candidate.model_type, " requires different values of ", join(unsupported, ", ")));
  }
  return nullptr;
}

}  // namespace

const Family& exporting_family(const ModelConfig& model, std::string_view model_type) {
  std::vector<std::string> reasons;
  if (const Family* family = find_exporting_family(model, model_type, reasons)) return *family;
  check_input(!reasons.empty(), "\"", model_type, "\": the model type must be one of ", family_names());
  fail(ExitCode::BadInput, "no Hugging Face model type can express this model: ", join(reasons, "; "));
}

bool has_exporting_family(const ModelConfig& model, std::string_view model_type) {
  std::vector<std::string> reasons;
  return find_exporting_family(model, model_type, reasons) != nullptr;
}

ModelConfig exportable_model(const ModelConfig& model, std::string_view model_type) {
  if (model.mtp_num_layers == 0 || has_exporting_family(model, model_type)) return model;
  ModelConfig without = model;
  without.remove_mtp();
  return has_exporting_family(without, model_type) ? without : model;
}

const Family& family_of_config(std::string_view text, const std::string& source) {
  const Json json = parse_config(text, source);
  const ConfigJson config(json, source);
  const std::string type = config.text("model_type", "none");
  const Family* family = find_family(type);
  config.require(family, "model_type", type, family_names().c_str());
  return *family;
}

ModelConfig parse_huggingface_config(std::string_view text, const std::string& source,
                                     std::optional<i64> prediction_layers) {
  const Family& family = family_of_config(text, source);
  const Json json = parse_config(text, source);
  ModelConfig model = parse_model(ConfigJson(json, source), family, prediction_layers);
  const std::vector<std::string> defects = find_defects(model);
  check_input(defects.empty(), source, ": ", join(defects, "; "));
  return model;
}

std::optional<i64> parse_prediction_layers(std::string_view text, const std::string& source) {
  const Json json = parse_config(text, source);
  return parse_prediction_layers(ConfigJson(json, source), family_of_config(text, source).traits);
}

Quantization parse_quantization(std::string_view text, const std::string& source) {
  const Json json = parse_config(text, source);
  return parse_quantization(ConfigJson(json, source));
}

std::string huggingface_config(const ModelConfig& model, const Family& family, DType dtype, const SpecialTokens& tokens,
                               const OrderedJson& quantization) {
  OrderedJson json = function_json(model, family);
  json["torch_dtype"] = dtype == DType::BF16  ? "bfloat16"
                        : dtype == DType::F16 ? "float16"
                        : dtype == DType::F64 ? "float64"
                                              : "float32";
  json["bos_token_id"] = tokens.bos ? OrderedJson(*tokens.bos) : OrderedJson();
  json["eos_token_id"] = tokens.eos ? OrderedJson(*tokens.eos) : OrderedJson();
  json.update(stated_members(tokens, "config.json"));
  json["use_cache"] = true;
  if (!quantization.is_null()) json["quantization_config"] = quantization;
  return json.dump(2) + "\n";
}

}  // namespace mcpp
