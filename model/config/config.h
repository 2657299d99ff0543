// Model configuration. The keys have the names of Megatron-LM.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/integer_math.h"
#include "model/config/moe.h"
#include "model/config/multi_latent.h"
#include "model/config/mup.h"
#include "model/config/recurrent.h"
#include "model/config/rope_scaling.h"

namespace mcpp {

enum class PositionEmbedding { LearnedAbsolute, Rope, None };
enum class Normalization { LayerNorm, RMSNorm };
/// Placement of the norms within a residual branch: before attention or MLP (pre-norm), after it (OLMo 2), or both
/// (Gemma 2).
enum class NormPosition { Pre, Post, Both };
/// Gelu is the tanh approximation (GPT-2's gelu_new), GeluErf the exact one; SwiGLU is silu(gate) * up, GeGLU is
/// Gelu(gate) * up, QuickGeGLU is gate * sigmoid(1.702 gate) * up.
enum class ActivationFunction { Gelu, GeluErf, SwiGLU, SquaredReLU, GeGLU, QuickGeGLU };
/// Additional term of the softmax denominator of attention: none, exp(0), or exp(a learned logit per head), which is an
/// attention sink.
enum class SoftmaxType : u8 { Vanilla, OffByOne, Learnable };

/// Scaling of the initial values of projections that add to the residual stream.
enum class DepthInit : u8 { Total, Layer, None };

template <>
struct EnumNames<DepthInit> {
  static constexpr std::array<std::string_view, 3> value{"total", "layer", "none"};
};
template <>
struct EnumNames<PositionEmbedding> {
  static constexpr std::array<std::string_view, 3> value{"learned_absolute", "rope", "none"};
};
template <>
struct EnumNames<Normalization> {
  static constexpr std::array<std::string_view, 2> value{"LayerNorm", "RMSNorm"};
};
template <>
struct EnumNames<NormPosition> {
  static constexpr std::array<std::string_view, 3> value{"pre", "post", "both"};
};
template <>
struct EnumNames<ActivationFunction> {
  static constexpr std::array<std::string_view, 6> value{"gelu",         "gelu_erf", "swiglu",
                                                         "squared_relu", "geglu",    "quick_geglu"};
};
template <>
struct EnumNames<SoftmaxType> {
  static constexpr std::array<std::string_view, 3> value{"vanilla", "off-by-one", "learnable"};
};

struct ModelConfig {
  i64 num_layers = 12;
  std::string hybrid_layer_pattern = {};
  i64 hidden_size = 768;
  PerLayer<i64> ffn_hidden_size = 0;
  PerLayer<i64> num_attention_heads = 12;
  PerLayer<i64> num_query_groups = 0;
  i64 kv_channels = 0;
  i64 seq_length = 1024;
  i64 max_position_embeddings = 0;
  i64 vocab_size = 0;
  i64 make_vocab_size_divisible_by = 128;
  PositionEmbedding position_embedding_type = PositionEmbedding::LearnedAbsolute;
  double rotary_base = 10000;
  double rotary_percent = 1;
  double rope_local_base_freq = 0;
  std::vector<i64> no_rope_freq = {};
  RopeScaling rope_scaling = {};
  std::vector<i64> window_size = {};
  std::vector<i64> window_attn_skip_freq = {};
  i64 attention_chunk_size = 0;
  Normalization normalization = Normalization::LayerNorm;
  double norm_epsilon = 1e-5;
  NormPosition norm_position = NormPosition::Pre;
  std::vector<i64> post_norm_freq = {};
  bool apply_layernorm_1p = false;
  bool qk_layernorm = false;
  bool qk_layernorm_all_heads = false;
  bool qk_l2_norm = false;
  bool attn_temperature_tuning = false;
  double attn_temperature_floor_scale = 8192;
  double attn_temperature_scale = 0.1;
  SoftmaxType softmax_type = SoftmaxType::Vanilla;
  std::vector<i64> attention_output_gate = {};
  MultiLatentConfig mla = {};
  bool use_parallel_residual = false;
  ActivationFunction activation_func = ActivationFunction::Gelu;
  double activation_func_clamp_value = 0;
  double glu_linear_offset = 0;
  double query_pre_attn_scalar = 0;
  double attn_logit_softcapping = 0;
  double final_logit_softcapping = 0;
  double embedding_multiplier = 1;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  bool add_attention_output_bias = false;
  bool add_mlp_bias = false;
  bool untie_embeddings_and_output_weights = false;
  i64 mtp_num_layers = 0;
  std::string mtp_hybrid_layer_pattern = {};
  double mtp_loss_scaling_factor = 0.1;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double init_method_std = 0.02;
  double embedding_init_method_std = 0;
  DepthInit depth_init = DepthInit::Total;
  double output_z_loss_coeff = 0;
  MupConfig mup = {};
  MoeConfig moe = {};
  RecurrentConfig recurrent = {};

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    size_fields(self, visit);
    position_fields(self, visit);
    attention_fields(self, visit);
    layer_fields(self, visit);
    MultiLatentConfig::fields(self.mla, visit);
    MupConfig::fields(self.mup, visit);
    MoeConfig::fields(self.moe, visit);
    RecurrentConfig::fields(self.recurrent, visit);
  }
  template <class Self, class Visitor>
  static void size_fields(Self& self, Visitor& visit) {
    visit("num_layers", self.num_layers, "number of transformer layers", between(1, 1e5));
    visit(
        "hybrid_layer_pattern", self.hybrid_layer_pattern,
        "layers with one branch each, one character per layer: * attention, M Mamba-2, G Gated DeltaNet, K Kimi Delta "
        "Attention, - MLP, E experts; \"\" = every layer has attention or linear attention, and then an MLP or "
        "experts");
    visit("hidden_size", self.hidden_size, "width of the residual stream", between(1, 1e6));
    visit("ffn_hidden_size", self.ffn_hidden_size,
          "width inside the MLP, for all layers or as a list with one value per layer; 0 = 4 x hidden_size",
          between(0, 1e7));
    visit("num_attention_heads", self.num_attention_heads,
          "query heads, for all layers or as a list with one value per layer", between(1, 1e5));
    visit("num_query_groups", self.num_query_groups,
          "key/value heads (grouped-query attention), for all layers or as a list with one value per layer; 0 = "
          "num_attention_heads",
          between(0, 1e5));
    visit("kv_channels", self.kv_channels, "width of one head; 0 = hidden_size / num_attention_heads", between(0, 1e5));
    visit("seq_length", self.seq_length, "tokens per training sample", between(1, 1e8));
    visit("max_position_embeddings", self.max_position_embeddings, "longest context; 0 = seq_length", between(0, 1e8));
    visit("vocab_size", self.vocab_size, "vocabulary size; 0 = vocabulary size of data.tokenizer_model",
          between(0, 2147483647));
    visit("make_vocab_size_divisible_by", self.make_vocab_size_divisible_by,
          "the embedding is padded to a multiple of this number, independently of the layout", between(1, 1e6));
  }
  template <class Self, class Visitor>
  static void position_fields(Self& self, Visitor& visit) {
    visit("position_embedding_type", self.position_embedding_type, "type of position encoding");
    visit("rotary_base", self.rotary_base, "base of RoPE's wavelengths", greater_than(1));
    visit("rotary_percent", self.rotary_percent, "fraction of each head that RoPE rotates", between(0, 1));
    visit("rope_local_base_freq", self.rope_local_base_freq,
          "base of RoPE's unscaled wavelengths in layers with a window; 0 = as in all layers", at_least(0));
    visit("no_rope_freq", self.no_rope_freq,
          "layers without RoPE: [n] = every n-th, or a list of 1 (no RoPE) and 0 (RoPE); [] = none", between(0, 1e5));
    RopeScaling::fields(self.rope_scaling, visit);
    visit(
        "window_size", self.window_size,
        "sliding window: number of visible keys before and after the query's position, as [before, 0]; [] = all before",
        between(0, 1e8));
    visit("window_attn_skip_freq", self.window_attn_skip_freq,
          "layers with the window: [n] = all but every n-th, or a list of 1 (window) and 0 (all keys); [] = all layers",
          between(0, 1e5));
    visit("attention_chunk_size", self.attention_chunk_size,
          "layers with RoPE: a query sees the keys of its own chunk of this many positions; 0 = all keys",
          between(0, 1e8));
  }
  template <class Self, class Visitor>
  static void attention_fields(Self& self, Visitor& visit) {
    visit("qk_layernorm", self.qk_layernorm, "normalize the queries and keys of each head separately");
    visit("qk_layernorm_all_heads", self.qk_layernorm_all_heads,
          "with qk_layernorm: normalize all heads of a token together");
    visit("qk_l2_norm", self.qk_l2_norm,
          "layers with RoPE: divide each query head and key head by its root mean square after rotation");
    visit("attn_temperature_tuning", self.attn_temperature_tuning,
          "layers without RoPE: multiply queries by 1 + attn_temperature_scale log(1 + floor((position + 1) / "
          "attn_temperature_floor_scale))");
    visit("attn_temperature_floor_scale", self.attn_temperature_floor_scale,
          "positions after which the factor of attn_temperature_tuning changes", greater_than(0));
    visit("attn_temperature_scale", self.attn_temperature_scale, "strength of attn_temperature_tuning", at_least(0));
    visit(
        "softmax_type", self.softmax_type,
        "term added to the softmax denominator of attention: none, 1, or the exponential of a learned value per head");
    visit(
        "attention_output_gate", self.attention_output_gate,
        "layers that multiply the output of core attention by the sigmoid of a projection of attention's input: [n] = "
        "every n-th, or a list of 1 (gate) and 0 (no gate); [] = none",
        between(0, 1e5));
    visit("query_pre_attn_scalar", self.query_pre_attn_scalar,
          "attention scores are divided by the square root of this value; 0 = width of a head", at_least(0));
    visit("attn_logit_softcapping", self.attn_logit_softcapping, "replace attention scores x by c tanh(x / c); 0 = off",
          at_least(0));
  }
  template <class Self, class Visitor>
  static void layer_fields(Self& self, Visitor& visit) {
    visit("normalization", self.normalization, "type of all norms");
    visit("norm_epsilon", self.norm_epsilon, "term added to the variance in a norm", greater_than(0));
    visit("norm_position", self.norm_position, "position of norms: before attention and MLP, after them, or both");
    visit(
        "post_norm_freq", self.post_norm_freq,
        "with norm_position = \"pre\": layers with norms after attention and MLP instead: [n] = every n-th, or a list "
        "of 1 (after) and 0 (before); [] = none",
        between(0, 1e5));
    visit("apply_layernorm_1p", self.apply_layernorm_1p, "norms multiply by 1 + weight; weights are initialized to 0");
    visit("use_parallel_residual", self.use_parallel_residual,
          "the MLP reads the input of attention instead of its output; both are added to the residual");
    visit("activation_func", self.activation_func, "activation of the MLP");
    visit("activation_func_clamp_value", self.activation_func_clamp_value,
          "gated activations: limit the gate to at most c and the linear part to between -c and c; 0 = no limit",
          at_least(0));
    visit("glu_linear_offset", self.glu_linear_offset, "gated activations: term added to the linear part");
    visit("final_logit_softcapping", self.final_logit_softcapping,
          "replace logits x of the vocabulary by c tanh(x / c); 0 = off", at_least(0));
    visit("embedding_multiplier", self.embedding_multiplier, "factor that multiplies the word embeddings",
          greater_than(0));
    visit("add_bias_linear", self.add_bias_linear, "add biases to all linear layers");
    visit("add_qkv_bias", self.add_qkv_bias, "add a bias to the QKV projection even if add_bias_linear is false");
    visit("add_attention_output_bias", self.add_attention_output_bias,
          "add a bias to attention's output projection even if add_bias_linear is false");
    visit("add_mlp_bias", self.add_mlp_bias, "add biases to the MLP even if add_bias_linear is false");
    visit("untie_embeddings_and_output_weights", self.untie_embeddings_and_output_weights,
          "use a separate output matrix instead of the word embeddings");
    visit("mtp_num_layers", self.mtp_num_layers,
          "layers of multi-token prediction, of which layer k predicts the token k positions after the next one in "
          "training; 0 = none",
          between(0, 100));
    visit("mtp_hybrid_layer_pattern", self.mtp_hybrid_layer_pattern,
          "branches of each layer of multi-token prediction, in the characters of hybrid_layer_pattern: one of *, M, G "
          "and K, then one of - and E, for example \"*E\"; \"\" = the branches of the last layer");
    visit("mtp_loss_scaling_factor", self.mtp_loss_scaling_factor,
          "weight of the mean loss of the multi-token prediction layers", greater_than(0));
    visit("hidden_dropout", self.hidden_dropout, "dropout after embedding, attention and MLP",
          between_excluding_max(0, 1));
    visit("attention_dropout", self.attention_dropout, "dropout of attention probabilities",
          between_excluding_max(0, 1));
    visit("init_method_std", self.init_method_std, "standard deviation of initial weights", greater_than(0));
    visit("embedding_init_method_std", self.embedding_init_method_std,
          "standard deviation of initial embeddings, of words and positions; 0 = init_method_std", at_least(0));
    visit("depth_init", self.depth_init,
          "divisor of init_method_std for projections that add to the residual stream: total = square root of their "
          "number in the model, layer = of their number up to their own layer, none = 1");
    visit(
        "output_z_loss_coeff", self.output_z_loss_coeff,
        "weight of the z-loss of the output, the mean over tokens of the square of log(sum(exp(logits))), which keeps "
        "logits small; 0 = none",
        between(0, 0.01));
  }

  /// Returns the number of layers, including the layers of multi-token prediction.
  i64 num_blocks() const { return num_layers + mtp_num_layers; }
  /// Removes multi-token prediction, which only training uses.
  void remove_mtp() {
    mtp_num_layers = 0;
    mtp_hybrid_layer_pattern.clear();
    mtp_loss_scaling_factor = ModelConfig().mtp_loss_scaling_factor;
  }
  /// Returns true if the pipeline stage with the output layer uses the word embeddings, as output matrix or for
  /// multi-token prediction.
  bool output_uses_embeddings() const { return !untie_embeddings_and_output_weights || mtp_num_layers > 0; }
  // These functions return sizes after applying defaults.
  i64 ffn(i64 layer) const {
    return ffn_hidden_size.of_layer(layer) > 0 ? ffn_hidden_size.of_layer(layer) : 4 * hidden_size;
  }
  i64 max_ffn() const { return ffn_hidden_size.max() > 0 ? ffn_hidden_size.max() : 4 * hidden_size; }
  i64 moe_ffn() const { return moe.ffn_hidden_size > 0 ? moe.ffn_hidden_size : max_ffn(); }
  i64 query_groups(i64 layer) const {
    return num_query_groups.of_layer(layer) > 0 ? num_query_groups.of_layer(layer)
                                                : num_attention_heads.of_layer(layer);
  }
  i64 head_dim() const {
    if (mla.is_used) return mla.head_dim();
    return kv_channels > 0 ? kv_channels : hidden_size / num_attention_heads.first();
  }
  i64 max_positions() const { return max_position_embeddings > 0 ? max_position_embeddings : seq_length; }
  i64 padded_vocab_size() const { return round_up(vocab_size, make_vocab_size_divisible_by); }
  bool is_gated() const {
    return activation_func == ActivationFunction::SwiGLU || activation_func == ActivationFunction::GeGLU ||
           activation_func == ActivationFunction::QuickGeGLU;
  }
  /// Returns the standard deviation of initial embeddings.
  double embedding_init_std() const {
    return embedding_init_method_std > 0 ? embedding_init_method_std : init_method_std;
  }
  /// Returns the width relative to the base model of the maximal update parametrization; 1 without it.
  double width_mult() const {
    if (!mup.is_used || mup.base_hidden_size == 0) return 1;
    return static_cast<double>(hidden_size) / static_cast<double>(mup.base_hidden_size);
  }
  /// Returns the factor of the logits before their soft cap.
  double logit_scale() const {
    if (!mup.is_used) return 1;
    return mup.output_mult > 0 ? mup.output_mult : 1 / width_mult();
  }
  /// Returns the factor of the attention scores.
  double softmax_scale() const;
  bool qkv_bias() const { return add_bias_linear || add_qkv_bias; }
  bool attention_output_bias() const { return add_bias_linear || add_attention_output_bias; }
  bool mlp_bias() const { return add_bias_linear || add_mlp_bias; }
  /// Returns the number of channels of a head that RoPE rotates, which is even.
  i64 rotary_dim() const {
    const i64 dim = mla.is_used ? mla.qk_pos_emb_head_dim : head_dim();
    return static_cast<i64>(static_cast<double>(dim) * rotary_percent) / 2 * 2;
  }
  /// Returns the angles [rotary_dim() / 2] by which RoPE rotates each pair of channels per position.
  std::vector<double> rotary_frequencies(bool is_local = false) const {
    if (is_local) return RopeScaling().frequencies(rope_local_base_freq, rotary_dim(), max_positions());
    return rope_scaling.frequencies(rotary_base, rotary_dim(), max_positions());
  }

  /// Returns a message "model.key: ..." for every violated rule between fields.
  std::vector<std::string> conflicts() const;
};

/// Replaces zeros in sizes that may differ by layer with the default values.
void resolve_sizes(ModelConfig& config);

}  // namespace mcpp
