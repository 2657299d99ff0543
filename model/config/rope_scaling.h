// Scaling of RoPE's wavelengths for longer contexts than the model was first trained with. The keys are "rope_scaling_"
// followed by the names in Hugging Face's rope_scaling (rope_parameters in transformers 5).
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace mcpp {

/// Method of scaling. Linear divides every frequency by the factor (Chen et al. 2023). Yarn and Llama3 divide low
/// frequencies, keep high frequencies and interpolate between them: Yarn by the number of rotations within the original
/// context (Peng et al., "YaRN", 2023), Llama3 by wavelength (Llama 3.1). Yarn also scales attention scores.
enum class RopeScalingType { None, Linear, Yarn, Llama3 };

template <>
struct EnumNames<RopeScalingType> {
  static constexpr std::array<std::string_view, 4> value{"none", "linear", "yarn", "llama3"};
};

struct RopeScaling {
  RopeScalingType type = RopeScalingType::None;
  double factor = 1;
  i64 original_max_position_embeddings = 0;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  double attention_factor = 0;
  bool truncate = true;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("rope_scaling_type", self.type, "method that scales RoPE's frequencies for a longer context");
    visit("rope_scaling_factor", self.factor, "factor by which the context is extended", at_least(1));
    visit("rope_scaling_original_max_position_embeddings", self.original_max_position_embeddings,
          "context before scaling; 0 = max_position_embeddings", between(0, 1e8));
    visit("rope_scaling_low_freq_factor", self.low_freq_factor,
          "llama3: wavelengths with fewer rotations than this in the original context are stretched by the factor",
          greater_than(0));
    visit("rope_scaling_high_freq_factor", self.high_freq_factor,
          "llama3: wavelengths with more rotations than this in the original context are unchanged", greater_than(0));
    visit("rope_scaling_beta_fast", self.beta_fast,
          "yarn: wavelengths with more rotations than this in the original context are unchanged", greater_than(0));
    visit("rope_scaling_beta_slow", self.beta_slow,
          "yarn: wavelengths with fewer rotations than this in the original context are stretched by the factor",
          greater_than(0));
    visit("rope_scaling_mscale", self.mscale,
          "yarn: weight of log(factor) in the attention factor; 0 = as in the paper, also if mscale_all_dim is 0",
          at_least(0));
    visit("rope_scaling_mscale_all_dim", self.mscale_all_dim,
          "yarn: weight of log(factor) in the divisor of the attention factor", at_least(0));
    visit("rope_scaling_attention_factor", self.attention_factor,
          "yarn: factor that multiplies cosines and sines; 0 = computed from factor and mscale", at_least(0));
    visit("rope_scaling_truncate", self.truncate,
          "yarn: round the bounds of the transition to integer channel indices");
  }

  bool operator==(const RopeScaling&) const = default;

  /// Appends a message "model.key: ..." to `errors` for every violated rule and for every key that is set but not used.
  /// `has_rope`: the model uses RoPE.
  void add_conflicts(bool has_rope, std::vector<std::string>& errors) const;
  /// Returns the rotation angle per position of each channel pair, [dim / 2]: base^(-2 i / dim) before scaling.
  /// `longest` is the context length to use if original_max_position_embeddings is 0.
  std::vector<double> frequencies(double base, i64 dim, i64 longest) const;
  /// Returns the context length in tokens before scaling.
  i64 original_context(i64 longest) const {
    return original_max_position_embeddings > 0 ? original_max_position_embeddings : longest;
  }
  /// Returns the factor that multiplies the cosines and sines.
  double magnitude() const;
  /// Returns the factor of the attention scores in DeepSeek's models, where YaRN scales all channels of queries and
  /// keys: the square of the factor that mscale_all_dim determines.
  double score_factor() const;
};

}  // namespace mcpp
