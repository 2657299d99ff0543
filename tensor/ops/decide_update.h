// Arithmetic of ops::decide_update, shared by all devices.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/ops/ops.h"

namespace mcpp {

/// Fills `numbers` as described at StepNumbers. constexpr only so that device code can call it.
inline constexpr void decide(double loss_sum, double targets, double squares, const StepRule& rule, double* numbers) {
  const double loss = loss_sum / targets, scale = rule.grad_scale / targets;
  const double exact = std::sqrt(squares) * std::abs(scale);
  const double norm = rule.rounds_norm ? static_cast<double>(static_cast<float>(exact)) : exact;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool has_loss = std::isfinite(loss), has_norm = std::isfinite(norm), finite = has_loss && has_norm;
  const bool spike = finite && (loss > rule.most_loss || norm > rule.most_grad_norm);
  const double clip = rule.clip_grad > 0 ? rule.clip_grad / (norm + 1e-6) : 1.0;
  numbers[StepNumbers::kLoss] = has_loss ? loss : kInfinity;
  numbers[StepNumbers::kTargets] = std::isfinite(targets) ? targets : 0;
  numbers[StepNumbers::kGradNorm] = has_norm ? norm : kInfinity;
  numbers[StepNumbers::kFactor] = !finite || (spike && rule.skips_spikes) ? kInfinity : scale * std::min(clip, 1.0);
  numbers[StepNumbers::kVerdict] = static_cast<double>(!finite ? StepVerdict::NotFinite
                                                       : spike ? StepVerdict::Spike
                                                               : StepVerdict::Fine);
}

}  // namespace mcpp
