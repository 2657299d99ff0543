#include "optimizer/loss_scale.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

#include "base/check.h"
#include "base/number_format.h"

namespace mcpp {

LossScale::LossScale(const OptimizerConfig& config, bool is_dynamic)
    : is_dynamic_(is_dynamic && config.loss_scale == 0),
      is_enabled_(is_dynamic_ || config.loss_scale > 0),
      value_(is_dynamic_   ? config.initial_loss_scale
             : is_enabled_ ? config.loss_scale
                           : 1),
      min_value_(config.min_loss_scale),
      window_(config.loss_scale_window),
      hysteresis_(config.hysteresis),
      overflows_left_(config.hysteresis) {}

double LossScale::factor(i64 tokens) const {
  return is_enabled_ ? value_ / static_cast<double>(std::bit_ceil(static_cast<u64>(tokens))) : 1;
}

double LossScale::expected_factor(i64 tokens) const {
  LossScale next = *this;
  next.update(/*has_overflow=*/false);
  return next.factor(tokens);
}

Overflow LossScale::update(bool has_overflow) {
  if (!is_dynamic_) return has_overflow ? Overflow::Final : Overflow::None;
  if (!has_overflow) {
    if (++good_steps_ < window_) return Overflow::None;
    good_steps_ = 0;
    overflows_left_ = hysteresis_;
    value_ *= 2;
    return Overflow::None;
  }
  const bool is_at_minimum = value_ <= min_value_;
  good_steps_ = 0;
  overflows_left_ = std::max<i64>(0, overflows_left_ - 1);
  if (overflows_left_ == 0) value_ = std::max(value_ / 2, min_value_);
  return is_at_minimum ? Overflow::Final : Overflow::Handled;
}

std::string LossScale::state() const {
  return is_dynamic_ ? str(shortest(value_), ' ', good_steps_, ' ', overflows_left_) : "";
}

void LossScale::restore(std::string_view state, const std::string& source) {
  if (!is_dynamic_) return;
  std::istringstream in{std::string(state)};
  double value = 0;
  i64 good_steps = 0, overflows_left = 0;
  std::string excess;
  const bool is_read = static_cast<bool>(in >> value >> good_steps >> overflows_left) && !(in >> excess);
  check_input(is_read && std::isfinite(value) && value > 0 && good_steps >= 0 && overflows_left >= 0, source,
              ": is not the state of a loss scale: \"", state, "\"");
  // The configuration may have changed since.
  value_ = std::max(value, min_value_);
  good_steps_ = std::min(good_steps, window_ - 1);
  overflows_left_ = std::min(overflows_left, hysteresis_);
}

}  // namespace mcpp
