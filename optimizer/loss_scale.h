// The factor that lifts gradients into the range of fp16 (Micikevicius et al., "Mixed Precision Training", 2018):
// fixed, or adapted by Megatron-LM's rules (megatron/core/optimizer/grad_scaler.py).
#pragma once
#include <string>
#include <string_view>

#include "optimizer/config.h"

namespace mcpp {

/// How a step ended, for the loss scale.
enum class Overflow : u8 {
  None,
  Handled,  ///< the gradient overflowed; with steps like this one the scale comes down until it does not
  Final,    ///< it overflowed at the lowest scale, or at one that is fixed
};

/// The loss whose gradient is scaled is the mean over the tokens of a global batch, as in Megatron-LM, so that the same
/// numbers mean the same.
class LossScale {
 public:
  /// `adapts`: where config.loss_scale is 0 the scale adapts itself; otherwise there is none.
  LossScale(const OptimizerConfig& config, bool adapts);

  double value() const { return value_; }
  bool adapts() const { return adapts_; }

  /// What to multiply the gradient of the summed loss of up to `tokens` tokens with: value() over tokens, rounded up to
  /// a power of two so that dividing by it rounds nothing. 1 when there is no scale.
  double factor(i64 tokens) const;
  /// The same after a step without overflow, as nearly all are: before anybody knows how the last one ended.
  double likely_factor(i64 tokens) const;

  /// After each step. `overflow`: gradient or loss was not finite on some rank, so that the step was skipped. An
  /// overflow halves the scale if `hysteresis` of them have come since it last grew; loss_scale_window steps in a row
  /// without one double it.
  Overflow update(bool overflow);

  /// All of its state; empty when it does not adapt.
  std::string state() const;
  /// Of state(). BadInput, naming `source`, for another text. Nothing happens when this scale does not adapt.
  void restore(std::string_view state, const std::string& source);

 private:
  bool adapts_, scales_;
  double value_, lowest_;
  i64 window_, hysteresis_;
  i64 good_steps_ = 0;      // in a row
  i64 overflows_left_ = 0;  // until the scale is halved
};

}  // namespace mcpp
