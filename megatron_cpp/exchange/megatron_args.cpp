#include "megatron_cpp/exchange/megatron_args.h"

#include <map>

#include "base/check.h"
#include "base/json.h"
#include "base/number_format.h"

namespace mcpp {
namespace {

/// Arguments with the same name and meaning as our key.
constexpr std::string_view kSameNames[]{"model.num_layers",
                                        "model.hidden_size",
                                        "model.ffn_hidden_size",
                                        "model.num_attention_heads",
                                        "model.kv_channels",
                                        "model.seq_length",
                                        "model.max_position_embeddings",
                                        "model.rotary_base",
                                        "model.rotary_percent",
                                        "model.qk_layernorm",
                                        "model.normalization",
                                        "model.norm_epsilon",
                                        "model.apply_layernorm_1p",
                                        "model.add_bias_linear",
                                        "model.add_qkv_bias",
                                        "model.untie_embeddings_and_output_weights",
                                        "model.hidden_dropout",
                                        "model.attention_dropout",
                                        "model.init_method_std",
                                        "optimizer.lr",
                                        "optimizer.min_lr",
                                        "optimizer.lr_decay_style",
                                        "optimizer.lr_decay_iters",
                                        "optimizer.lr_warmup_iters",
                                        "optimizer.weight_decay",
                                        "optimizer.adam_beta1",
                                        "optimizer.adam_beta2",
                                        "optimizer.adam_eps",
                                        "optimizer.clip_grad",
                                        "training.seed",
                                        "training.micro_batch_size",
                                        "training.global_batch_size",
                                        "training.train_iters"};

/// Arguments that change the model and must be off.
constexpr std::string_view kUnsupported[]{"num_experts",
                                          "multi_latent_attention",
                                          "mtp_num_layers",
                                          "rotary_interleaved",
                                          "use_rope_scaling",
                                          "rotary_seq_len_interpolation_factor",
                                          "window_size",
                                          "attention_output_gate",
                                          "experimental_attention_variant",
                                          "hybrid_override_pattern",
                                          "is_hybrid_model",
                                          "apply_residual_connection_post_layernorm",
                                          "quick_geglu"};

bool is_on(const PickleValue* value) {
  if (!value) return false;
  switch (value->kind) {
    case PickleKind::None:
      return false;
    case PickleKind::Bool:
    case PickleKind::Integer:
      return value->integer != 0;
    default:
      return true;
  }
}

/// Returns the value as text of a configuration; "" if it has none.
std::string text_of(const PickleValue* value) {
  if (!value) return "";
  switch (value->kind) {
    case PickleKind::Bool:
      return value->integer ? "true" : "false";
    case PickleKind::Integer:
      return str(value->integer);
    case PickleKind::Float:
      return shortest(value->number);
    case PickleKind::Text:
      return std::string(value->text);
    default:
      return "";
  }
}

class MegatronArguments {
 public:
  MegatronArguments(const PickleValue& values, const std::string& source) : values_(values), source_(source) {}

  /// Returns the configuration as TOML.
  std::string toml() {
    for (const std::string_view name : kUnsupported)
      check_input(!is_on(find(name)), source_, ": args.", name,
                  " is set, which this import does not convert; pass the configuration of the run with --config");
    check_input(text_of(find("optimizer")).empty() || text_of(find("optimizer")) == "adam", source_,
                ": args.optimizer is ", text_of(find("optimizer")), "; only adam can be imported");
    for (const std::string_view key : kSameNames) {
      const PickleValue* value = find(key.substr(key.find('.') + 1));
      const std::string text = text_of(value);
      if (!text.empty()) set(key, value->is(PickleKind::Text) ? quoted(text) : text);
    }
    if (!is_on(find("train_iters"))) set("training.train_iters", "1");
    if (is_on(find("group_query_attention"))) set("model.num_query_groups", text_of(find("num_query_groups")));
    set_vocabulary();
    set_positions();
    set_activation();
    set("training.precision", quoted(is_on(find("bf16")) ? "bf16" : is_on(find("fp16")) ? "fp16" : "fp32"));
    std::string text;
    for (const auto& [section, lines] : sections_) text += str("[", section, "]\n", lines);
    return text;
  }

 private:
  const PickleValue* find(std::string_view name) const { return values_.find(name); }
  static std::string quoted(const std::string& text) { return Json(text).dump(); }
  /// Sets a key to a value in TOML.
  void set(std::string_view key, const std::string& value) {
    const std::size_t dot = key.find('.');
    sections_[std::string(key.substr(0, dot))] += str(key.substr(dot + 1), " = ", value, "\n");
  }

  void set_vocabulary() {
    // Megatron-LM stores the size before padding only if it was given as an option.
    const bool is_known = is_on(find("vocab_size"));
    const std::string size = text_of(find(is_known ? "vocab_size" : "padded_vocab_size"));
    check_input(!size.empty(), source_, ": args has neither vocab_size nor padded_vocab_size; pass --config");
    set("model.vocab_size", size);
  }
  void set_positions() {
    const std::string type = text_of(find("position_embedding_type"));
    if (!type.empty()) set("model.position_embedding_type", quoted(type));
  }
  void set_activation() {
    // The fused kernel and OpenAI's variant use the tanh approximation.
    const PickleValue* fusion = find("bias_gelu_fusion");
    const bool is_exact = fusion && !is_on(fusion) && !is_on(find("openai_gelu"));
    const char* ungated = is_on(find("squared_relu")) ? "squared_relu" : is_exact ? "gelu_erf" : "gelu";
    set("model.activation_func", quoted(is_on(find("swiglu")) ? "swiglu" : ungated));
  }

  const PickleValue& values_;
  const std::string& source_;
  std::map<std::string, std::string> sections_;  // lines by section
};

}  // namespace

Config config_of_megatron_args(const PickleValue& arguments, const std::string& source) {
  check_input(arguments.is_object("argparse.Namespace") || arguments.is_object("types.SimpleNamespace"), source,
              ": args is not a namespace");
  // Megatron-LM stores all arguments, also those without effect.
  return without_unused_keys(parse_stored_config(MegatronArguments(arguments, source).toml(), source + ": args"));
}

}  // namespace mcpp
