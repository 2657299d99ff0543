#include "model/config/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Returns the weight of the scaled frequency in the interpolation: 1 if the frequency is divided by the factor, 0 if
/// it is unchanged. The weight decreases from 1 at low_freq_factor to 0 at high_freq_factor turns within the original
/// context. If both are equal, as in Llama 4, it is a step function.
double llama3_share(const RopeScaling& s, double frequency, double context) {
  const double turns = context * frequency / (2 * std::numbers::pi);
  if (s.low_freq_factor == s.high_freq_factor) return turns < s.low_freq_factor ? 1 : 0;
  return 1 - std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0, 1.0);
}

/// Returns the fractional index of the channel that makes `turns` turns within the context.
double channel_of_turns(double turns, double base, i64 dim, double context) {
  return static_cast<double>(dim) * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

/// Transition of YaRN from unchanged channels to scaled channels.
struct Ramp {
  double first = 0, last = 0;
  double share(i64 channel) const {
    return std::clamp((static_cast<double>(channel) - first) / (last - first), 0.0, 1.0);
  }
};

Ramp yarn_ramp(const RopeScaling& s, double base, i64 dim, double context) {
  double first = channel_of_turns(s.beta_fast, base, dim, context),
         last = channel_of_turns(s.beta_slow, base, dim, context);
  if (s.truncate) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, static_cast<double>(dim - 1));
  return {first, first == last ? last + 0.001 : last};  // avoids a division by zero, as in transformers
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

}  // namespace

std::vector<double> RopeScaling::frequencies(double base, i64 dim, i64 longest) const {
  const auto context = static_cast<double>(original_context(longest));
  const Ramp ramp = type == RopeScalingType::Yarn ? yarn_ramp(*this, base, dim, context) : Ramp{};
  std::vector<double> result;
  for (i64 i = 0; i < dim / 2; ++i) {
    const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const double share = type == RopeScalingType::Linear   ? 1
                         : type == RopeScalingType::Yarn   ? ramp.share(i)
                         : type == RopeScalingType::Llama3 ? llama3_share(*this, frequency, context)
                                                           : 0;
    result.push_back(share == 0 ? frequency : (1 - share) * frequency + share * frequency / factor);
  }
  return result;
}

double RopeScaling::magnitude() const {
  if (type != RopeScalingType::Yarn) return 1;
  if (attention_factor > 0) return attention_factor;
  if (mscale > 0 && mscale_all_dim > 0) return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim);
  return yarn_magnitude(factor, 1);
}

double RopeScaling::score_factor() const {
  if (type != RopeScalingType::Yarn || mscale_all_dim == 0) return 1;
  const double magnitude = yarn_magnitude(factor, mscale_all_dim);
  return magnitude * magnitude;
}

void RopeScaling::add_conflicts(bool has_rope, std::vector<std::string>& errors) const {
  const RopeScaling defaults;
  if (!has_rope && type != RopeScalingType::None)
    errors.push_back("model.rope_scaling_type: only read when position_embedding_type is \"rope\"");
  const auto only_with = [&](bool is_set, bool is_read, const char* key, const char* types) {
    if (is_set && !is_read)
      errors.push_back(str("model.rope_scaling_", key, ": only read when rope_scaling_type is ", types));
  };
  const bool is_scaled = type != RopeScalingType::None, is_llama3 = type == RopeScalingType::Llama3,
             is_yarn = type == RopeScalingType::Yarn;
  only_with(factor != defaults.factor, is_scaled, "factor", "not \"none\"");
  only_with(original_max_position_embeddings != 0, is_yarn || is_llama3, "original_max_position_embeddings",
            "\"yarn\" or \"llama3\"");
  only_with(low_freq_factor != defaults.low_freq_factor, is_llama3, "low_freq_factor", "\"llama3\"");
  only_with(high_freq_factor != defaults.high_freq_factor, is_llama3, "high_freq_factor", "\"llama3\"");
  only_with(beta_fast != defaults.beta_fast, is_yarn, "beta_fast", "\"yarn\"");
  only_with(beta_slow != defaults.beta_slow, is_yarn, "beta_slow", "\"yarn\"");
  only_with(mscale != 0, is_yarn, "mscale", "\"yarn\"");
  only_with(mscale_all_dim != 0, is_yarn, "mscale_all_dim", "\"yarn\"");
  only_with(attention_factor != 0, is_yarn, "attention_factor", "\"yarn\"");
  only_with(!truncate, is_yarn, "truncate", "\"yarn\"");
  if (is_llama3 && low_freq_factor > high_freq_factor)
    errors.push_back(str("model.rope_scaling_high_freq_factor: ", high_freq_factor,
                         " must be at least rope_scaling_low_freq_factor, which is ", low_freq_factor));
  if (is_yarn && beta_slow >= beta_fast)
    errors.push_back(str("model.rope_scaling_beta_fast: ", beta_fast,
                         " must be above rope_scaling_beta_slow, which is ", beta_slow));
}

}  // namespace mcpp
