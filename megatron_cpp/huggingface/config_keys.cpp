#include "megatron_cpp/huggingface/config_keys.h"

#include <algorithm>
#include <set>

#include "model/config/block_spec.h"

namespace mcpp {
namespace {

constexpr const char* kRopeTypes = "default, linear, llama3, yarn";
constexpr const char* kTypedRope = "a 'rope_type' next to it, of default, linear, llama3, yarn";
constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

/// Parses rope_scaling (transformers 4) or rope_parameters (transformers 5). `longest` is the model's maximum context.
RopeScaling parse_rope_scaling(const ConfigJson& rope, i64 longest, bool supports_scaling) {
  RopeScaling scaling;
  const bool is_typed = rope.find("rope_type") || rope.find("type");
  for (const char* key :
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
        "mscale", "mscale_all_dim", "attention_factor", "short_factor", "long_factor"})
    rope.require(is_typed || !rope.find(key), key, "set without a 'rope_type' that uses it", kTypedRope);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  rope.require(type != "dynamic", "rope_type", "dynamic, whose frequencies depend on the length of the sequence",
               kRopeTypes);
  if (type == "default") return scaling;
  rope.require(supports_scaling, "rope_type", type, "default");
  const auto it = std::ranges::find(EnumNames<RopeScalingType>::value, type);
  rope.require(it != EnumNames<RopeScalingType>::value.end() && type != "none", "rope_type", type, kRopeTypes);
  scaling.type = static_cast<RopeScalingType>(it - EnumNames<RopeScalingType>::value.begin());
  const i64 original = rope.integer("original_max_position_embeddings", longest);
  if (scaling.type != RopeScalingType::Linear) scaling.original_max_position_embeddings = original;
  if (scaling.type == RopeScalingType::Yarn) {
    scaling.factor = rope.number("factor", static_cast<double>(longest) / static_cast<double>(original));
    scaling.beta_fast = rope.number("beta_fast", scaling.beta_fast);
    scaling.beta_slow = rope.number("beta_slow", scaling.beta_slow);
    scaling.mscale = rope.number("mscale", 0);
    scaling.mscale_all_dim = rope.number("mscale_all_dim", 0);
    scaling.attention_factor = rope.number("attention_factor", 0);
    scaling.truncate = rope.flag("truncate", true);
  } else {
    scaling.factor = rope.number("factor");
  }
  if (scaling.type == RopeScalingType::Llama3) {
    scaling.low_freq_factor = rope.number("low_freq_factor");
    scaling.high_freq_factor = rope.number("high_freq_factor");
  }
  return scaling;
}

/// Returns the RoPE keys of the layers without a window. If the object has one entry per kind of layer, also sets the
/// RoPE of layers with a window; throws BadInput unless the family supports two.
std::optional<ConfigJson> rope_of_all_layers(const ConfigJson& rope, const LlamaTraits& traits, ModelConfig& model) {
  const std::optional<ConfigJson> full = rope.object(kFull), local = rope.object(kSliding);
  if (!full && !local) return rope;
  for (const char* kind : {kFull, kSliding})
    rope.require(traits.rope_local_base_freq > 0 || !rope.object(kind), kind, "set separately",
                 "one RoPE for all layers");
  if (local) {
    const std::string type = local->text("rope_type", "default");
    local->require(type == "default", "rope_type", type, "default");
    model.rope_local_base_freq = local->number("rope_theta", model.rope_local_base_freq);
  }
  return full;
}

/// Returns, for each layer, whether it has a window in a model without layer_types.
std::vector<bool> default_windows(const ConfigJson& config, const LlamaTraits& traits, const ModelConfig& model,
                                  bool has_window) {
  const auto layers = static_cast<std::size_t>(model.num_layers);
  std::vector<bool> windows(layers, has_window);
  if (traits.windows == WindowKeys::FromLayer || traits.windows == WindowKeys::FromLayerIfUsed) {
    const bool is_used = traits.windows == WindowKeys::FromLayer || config.flag("use_sliding_window", false);
    const auto full =
        std::min(layers, static_cast<std::size_t>(config.count("max_window_layers", traits.max_window_layers)));
    std::fill_n(windows.begin(), is_used ? full : layers, false);
  } else if (traits.windows == WindowKeys::AllIfUsed && !config.flag("use_sliding_window", false)) {
    std::fill(windows.begin(), windows.end(), false);
  } else if (traits.windows == WindowKeys::AllButEveryNth) {
    const auto pattern = static_cast<std::size_t>(config.integer("sliding_window_pattern", traits.window_pattern));
    for (std::size_t layer = 0; layer < layers; ++layer) windows[layer] = has_window && (layer + 1) % pattern != 0;
  } else if (traits.windows == WindowKeys::NopeIfUsed) {
    const bool is_used = config.flag("use_sliding_window", false);
    for (std::size_t layer = 0; layer < layers; ++layer)
      windows[layer] = has_window && is_used && !has_rope(model, static_cast<i64>(layer));
  }
  return windows;
}

/// Returns, for each layer, whether layer_types selects a window; empty if this key is absent.
std::vector<bool> parse_layer_types(const ConfigJson& config, i64 layers) {
  std::vector<bool> windows;
  if (!config.find("layer_types")) return windows;
  for (const Json& type : config.array("layer_types")) {
    const bool slides = type == kSliding;
    config.require(slides || type == kFull, "layer_types", type.dump(), "sliding_attention, full_attention");
    windows.push_back(slides);
  }
  config.require(static_cast<i64>(windows.size()) == layers, "layer_types", str("of ", windows.size(), " layers"),
                 "one for each of num_hidden_layers");
  return windows;
}

}  // namespace

std::vector<i64> all_but_every_nth(const std::vector<bool>& selected) {
  const i64 layers = static_cast<i64>(selected.size());
  for (i64 n = 2; n <= layers + 1; ++n) {
    const auto fits = [&](i64 layer) { return selected[static_cast<std::size_t>(layer)] == ((layer + 1) % n != 0); };
    i64 layer = 0;
    while (layer < layers && fits(layer)) ++layer;
    if (layer == layers) return {n};
  }
  return {selected.begin(), selected.end()};
}

bool rotates_pairs(const ModelConfig& model) {
  return model.rotary_percent == 1 ||
         static_cast<i64>(static_cast<double>(model.head_dim()) * model.rotary_percent) % 2 == 0;
}

void parse_rope(const ConfigJson& config, const Family& family, ModelConfig& model) {
  const char* base = family.family == HuggingfaceFamily::GptNeox ? "rotary_emb_base" : "rope_theta";
  const LlamaTraits& traits = family.traits;
  model.rotary_base = config.number(base, traits.rope_theta);
  model.rope_local_base_freq = traits.rope_local_base_freq;
  if (traits.rope_local_base_freq > 0)
    model.rope_local_base_freq = config.number("rope_local_base_freq", traits.rope_local_base_freq);
  std::optional<ConfigJson> rope = config.object("rope_scaling");
  if (!rope) rope = config.object("rope_parameters");
  if (rope) rope = rope_of_all_layers(*rope, traits, model);
  if (rope) {
    model.rotary_base = rope->number("rope_theta", model.rotary_base);
    model.rope_scaling = parse_rope_scaling(*rope, model.max_positions(), traits.supports_rope_scaling);
    if (model.rope_scaling.original_max_position_embeddings > 0)
      model.rope_scaling.original_max_position_embeddings =
          config.integer("original_max_position_embeddings", model.rope_scaling.original_max_position_embeddings);
  }
  config.require(model.rotary_base > 1, base, model.rotary_base, "greater than 1");
}

OrderedJson rope_scaling_json(const ModelConfig& m) {
  const RopeScaling& scaling = m.rope_scaling;
  if (scaling.type == RopeScalingType::None) return nullptr;
  OrderedJson json{{"rope_type", enum_name(scaling.type)}, {"factor", scaling.factor}};
  if (scaling.type == RopeScalingType::Linear) return json;
  json["original_max_position_embeddings"] = scaling.original_context(m.max_positions());
  if (scaling.type == RopeScalingType::Llama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    return json;
  }
  json["beta_fast"] = scaling.beta_fast;
  json["beta_slow"] = scaling.beta_slow;
  if (scaling.mscale > 0) json["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim > 0) json["mscale_all_dim"] = scaling.mscale_all_dim;
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  if (!scaling.truncate) json["truncate"] = false;
  return json;
}

bool has_rope(const ModelConfig& model, i64 layer) {
  const std::optional<AttentionSpec> attention = block_spec(model, layer).core_attention();
  return attention && attention->rope != RotaryKind::None;
}

void parse_no_rope_layers(const ConfigJson& config, ModelConfig& model) {
  if (model.num_layers > kMaxLayers) return;  // rejected later with other values out of range
  const auto layers = static_cast<std::size_t>(model.num_layers);
  std::vector<bool> ropes;
  if (config.find("no_rope_layers")) {
    for (const Json& layer : config.array("no_rope_layers")) {
      config.require(layer == 0 || layer == 1, "no_rope_layers", layer.dump(), "a list of 1 (RoPE) and 0 (no RoPE)");
      ropes.push_back(layer == 1);
    }
    config.require(ropes.size() >= layers, "no_rope_layers", str("of ", ropes.size(), " layers"),
                   "one value for each of num_hidden_layers");
    ropes.resize(layers);
  } else {
    const auto interval = static_cast<std::size_t>(config.integer("no_rope_layer_interval", 4));
    for (std::size_t layer = 0; layer < layers; ++layer) ropes.push_back((layer + 1) % interval != 0);
  }
  if (std::ranges::count(ropes, false) == 0) return;
  const std::vector<i64> freq = all_but_every_nth(ropes);
  if (freq.size() == 1 && layers > 1) {
    model.no_rope_freq = freq;
  } else {
    for (const bool rope : ropes) model.no_rope_freq.push_back(rope ? 0 : 1);
  }
}

void add_no_rope_layers(const ModelConfig& model, OrderedJson& json) {
  OrderedJson layers = OrderedJson::array();
  for (i64 layer = 0; layer < model.num_layers; ++layer) layers.push_back(has_rope(model, layer) ? 1 : 0);
  json["no_rope_layers"] = layers;
}

void parse_windows(const ConfigJson& config, const LlamaTraits& traits, ModelConfig& model) {
  const bool is_stated = config.has_key("sliding_window");
  const i64 window = is_stated ? config.count("sliding_window", 0) : traits.sliding_window;  // 0: none
  if (traits.windows == WindowKeys::None) {
    config.require(!is_stated || window == 0, "sliding_window", window, "null; model_type mistral has windows");
    return;
  }
  if (model.num_layers > kMaxLayers) return;  // rejected later with other values out of range
  std::vector<bool> windows = default_windows(config, traits, model, window > 0);
  const bool has_types = traits.windows != WindowKeys::AllIfUsed;
  if (has_types)
    if (const std::vector<bool> types = parse_layer_types(config, model.num_layers); !types.empty()) windows = types;
  const i64 count = std::ranges::count(windows, true);
  if (count == 0) {
    model.rope_local_base_freq = 0;
    return;
  }
  config.require(window > 0, "sliding_window", "null", "a number, for the layers of sliding_attention");
  model.window_size = {window - 1, 0};
  if (count < model.num_layers) model.window_attn_skip_freq = all_but_every_nth(windows);
}

bool has_window(const ModelConfig& model, i64 layer) {
  const std::optional<AttentionSpec> attention = block_spec(model, layer).core_attention();
  return attention && attention->window > 0;
}
i64 count_windows(const ModelConfig& model) {
  i64 count = 0;
  for (i64 layer = 0; layer < model.num_layers; ++layer) count += has_window(model, layer) ? 1 : 0;
  return count;
}

void add_windows(const ModelConfig& model, WindowKeys keys, OrderedJson& json) {
  if (keys == WindowKeys::None) return;
  const bool has_windows = count_windows(model) > 0;
  json["sliding_window"] = has_windows ? OrderedJson(model.window_size[0] + 1) : OrderedJson();
  if (keys == WindowKeys::All) return;
  if (keys != WindowKeys::AllIfUsed) {
    OrderedJson types = OrderedJson::array();
    for (i64 layer = 0; layer < model.num_layers; ++layer) types.push_back(has_window(model, layer) ? kSliding : kFull);
    json["layer_types"] = types;
  }
  if (keys == WindowKeys::FromLayerIfUsed || keys == WindowKeys::AllIfUsed || keys == WindowKeys::NopeIfUsed)
    json["use_sliding_window"] = has_windows;
}

namespace {

void parse_mixtral(const ConfigJson& config, ModelConfig& model) {
  model.moe.num_experts = config.integer("num_local_experts", 8);
  const double jitter = config.number("router_jitter_noise", 0);
  config.require(jitter == 0, "router_jitter_noise", jitter, "0");
}

/// Returns the layers with experts by the rule of transformers: layer i has them if decoder_sparse_step divides i + 1
/// and mlp_only_layers does not contain i.
std::vector<i64> sparse_layers(const ConfigJson& config, i64 num_layers) {
  const i64 step = config.integer("decoder_sparse_step", 1);
  std::set<i64> dense;
  if (config.find("mlp_only_layers"))
    for (const Json& layer : config.array("mlp_only_layers")) dense.insert(layer.get<i64>());
  std::vector<i64> layers;
  for (i64 i = 0; i < num_layers; ++i) layers.push_back((i + 1) % step == 0 && !dense.contains(i) ? 1 : 0);
  if (std::ranges::all_of(layers, [](i64 x) { return x == 1; })) return {1};
  return layers;
}

/// Defaults of transformers for absent keys of experts.
struct QwenDefaults {
  i64 experts = 128, topk = 8, ffn = 768, shared = 0;  ///< shared = 0: no shared expert
  bool normalizes = false;
};

QwenDefaults qwen_defaults(ExpertKeys keys) {
  switch (keys) {
    case ExpertKeys::Qwen2:
      return {.experts = 60, .topk = 4, .ffn = 1408, .shared = 5632};
    case ExpertKeys::Qwen3Next:
      return {.experts = 512, .topk = 10, .ffn = 512, .shared = 512, .normalizes = true};
    case ExpertKeys::Qwen35Moe:
      return {.experts = 256, .topk = 8, .ffn = 512, .shared = 512, .normalizes = true};
    default:
      return {};
  }
}

void parse_qwen(const ConfigJson& config, ExpertKeys keys, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  const QwenDefaults defaults = qwen_defaults(keys);
  const char* key =
      config.find("num_local_experts") ? "num_local_experts" : "num_experts";  // transformers 5 and 4, respectively
  moe.num_experts = config.integer(key, defaults.experts);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", defaults.ffn);
  if (keys != ExpertKeys::Qwen35Moe) {  // qwen3_5_moe_text always has experts in all layers and normalized weights
    moe.layer_freq = sparse_layers(config, model.num_layers);
    moe.router_pre_softmax = !config.flag("norm_topk_prob", defaults.normalizes);
  }
  if (defaults.shared == 0) return;
  moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size", defaults.shared);
  moe.shared_expert_gate = true;
}

bool has_own_functions(ExpertKeys keys) {
  return keys == ExpertKeys::GptOss || keys == ExpertKeys::Llama4;
}

}  // namespace

void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model) {
  if (keys == ExpertKeys::None || has_own_functions(keys) || model.num_layers > kMaxLayers) return;
  if (has_deepseek_keys(keys)) return parse_deepseek_experts(config, keys, model);
  const bool is_mixtral = keys == ExpertKeys::Mixtral;
  is_mixtral ? parse_mixtral(config, model) : parse_qwen(config, keys, model);
  model.moe.router_topk = config.integer("num_experts_per_tok", is_mixtral ? 2 : qwen_defaults(keys).topk);
  model.moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
}

std::vector<std::string> unsupported_expert_options(const ModelConfig& m, ExpertKeys keys) {
  const i64 shared = m.moe.shared_expert_intermediate_size;
  const bool has_shared = qwen_defaults(keys).shared > 0 || has_deepseek_keys(keys);
  std::vector<std::string> unsupported;
  if (has_shared && (shared == 0 || (has_deepseek_keys(keys) && shared % m.moe_ffn() != 0)))
    unsupported.emplace_back("model.moe_shared_expert_intermediate_size");
  if ((keys == ExpertKeys::GptOss && m.moe.router_topk == 1) || (keys == ExpertKeys::Llama4 && m.moe.router_topk != 1))
    unsupported.emplace_back("model.moe_router_topk");
  if (keys == ExpertKeys::GptOss && m.activation_func_clamp_value == 0)
    unsupported.emplace_back("model.activation_func_clamp_value");
  if (keys == ExpertKeys::Llama4 && m.head_dim() % 2 != 0) unsupported.emplace_back("model.kv_channels");
  return unsupported;
}

void add_experts(const ModelConfig& m, ExpertKeys keys, OrderedJson& json) {
  if (keys == ExpertKeys::None || has_own_functions(keys)) return;
  json["num_experts_per_tok"] = m.moe.router_topk;
  if (has_deepseek_keys(keys)) return add_deepseek_experts(m, keys, json);
  json["router_aux_loss_coef"] = m.moe.total_aux_loss_coeff();
  if (keys == ExpertKeys::Mixtral) {
    json["intermediate_size"] = m.moe_ffn();
    json["num_local_experts"] = m.moe.num_experts;
    return;
  }
  std::vector<i64> dense;
  for (i64 layer = 0; layer < m.num_layers; ++layer)
    if (!block_spec(m, layer).moe()) dense.push_back(layer);
  json["num_experts"] = m.moe.num_experts;
  json["moe_intermediate_size"] = m.moe_ffn();
  if (qwen_defaults(keys).shared > 0) json["shared_expert_intermediate_size"] = m.moe.shared_expert_intermediate_size;
  if (keys == ExpertKeys::Qwen35Moe) return;
  json["norm_topk_prob"] = !m.moe.router_pre_softmax;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
}

}  // namespace mcpp
