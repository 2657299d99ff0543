// Loss scale, which lifts gradients into the range of fp16 (Micikevicius et al., "Mixed Precision Training", 2018):
// constant, or dynamic with Megatron-LM's rules (megatron/core/optimizer/grad_scaler.py).
#pragma once
#include <string>
#include <string_view>

#include "optimizer/config.h"

namespace mcpp {

/// Outcome of a step with respect to overflow.
enum class Overflow : u8 {
  None,
  Handled,  ///< the gradient overflowed; repeated overflows lower the scale until they stop
  Final,    ///< overflow at the lowest scale, or at a constant one
};

/// Loss scale of a run. As in Megatron-LM, the scaled loss is the mean over the tokens of a global batch, so scales are
/// comparable with Megatron-LM's.
class LossScale {
 public:
  /// If config.loss_scale is 0, the scale is dynamic if `is_dynamic`, and off otherwise.
  LossScale(const OptimizerConfig& config, bool is_dynamic);

  double value() const { return value_; }
  bool is_dynamic() const { return is_dynamic_; }

  /// Returns the factor for the gradient of the summed loss of up to `tokens` tokens: value() divided by `tokens`,
  /// which is rounded up to a power of two so that the division is exact. Returns 1 without a scale.
  double factor(i64 tokens) const;
  /// Returns the factor() of the next step under the assumption that the last step does not overflow, before the
  /// outcome of that step is known. Nearly all steps do not overflow.
  double expected_factor(i64 tokens) const;

  /// Updates the scale after each step. `has_overflow` means that the gradient or the loss was not finite on some rank,
  /// so the step was skipped. The `hysteresis`-th overflow since the last growth, and each one after it, halves the
  /// scale; loss_scale_window consecutive steps without overflow double it.
  Overflow update(bool has_overflow);

  /// Returns the complete state as text; empty if the scale is not dynamic.
  std::string state() const;
  /// Restores state(). Throws BadInput, naming `source`, for malformed text. Does nothing if this scale is not dynamic.
  void restore(std::string_view state, const std::string& source);

 private:
  bool is_dynamic_, is_enabled_;
  double value_, min_value_;
  i64 window_, hysteresis_;
  i64 good_steps_ = 0;      // consecutive steps without overflow
  i64 overflows_left_ = 0;  // overflows until the scale is halved
};

}  // namespace mcpp
