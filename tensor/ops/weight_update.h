// Arithmetic of weight updates that is shared by all backends.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "tensor/ops/ops.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Sets `scalars` as documented in StepScalars. constexpr only so that device code can call it.
inline constexpr void compute_step_scalars(double loss_sum, double targets, double squares, const StepRule& rule,
                                           double* scalars) {
  // A batch without targets has the loss 0 and no gradient, not even of auxiliary losses.
  const double loss = targets == 0 ? 0 : loss_sum / targets, scale = targets == 0 ? 0 : rule.grad_scale / targets;
  const double exact = std::sqrt(squares) * std::abs(scale);
  const double norm = rule.round_norm_to_fp32 ? static_cast<double>(static_cast<float>(exact)) : exact;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool has_loss = std::isfinite(loss), has_norm = std::isfinite(norm), finite = has_loss && has_norm;
  const bool is_spike = finite && (loss > rule.max_loss || norm > rule.max_grad_norm);
  const double clip = rule.clip_grad > 0 ? rule.clip_grad / (norm + 1e-6) : 1.0;
  scalars[StepScalars::kLoss] = has_loss ? loss : kInfinity;
  scalars[StepScalars::kTargets] = std::isfinite(targets) ? targets : 0;
  scalars[StepScalars::kGradNorm] = has_norm ? norm : kInfinity;
  scalars[StepScalars::kFactor] =
      !finite || (is_spike && rule.should_skip_spikes) ? kInfinity : scale * std::min(clip, 1.0);
  scalars[StepScalars::kStatus] = static_cast<double>(!finite    ? StepStatus::NotFinite
                                                      : is_spike ? StepStatus::Spike
                                                                 : StepStatus::Fine);
}

/// Calls f.template operator()<T, M>() with the element types of `master` and `model`. M is T if `model` is null.
template <class F>
void on_weight_dtypes(const Tensor& master, const Tensor* model, F&& f) {
  on_float(master.dtype(), [&]<class T>() {
    if constexpr (kIsLowPrecision<T>) {
      fail(ExitCode::Internal, "master weights must be fp32 or fp64");
    } else if (model) {
      on_float(model->dtype(), [&]<class M>() {
        if constexpr (sizeof(M) <= sizeof(T))
          f.template operator()<T, M>();
        else
          fail(ExitCode::Internal, "fp64 weights need fp64 master weights");
      });
    } else {
      f.template operator()<T, T>();
    }
  });
}

}  // namespace mcpp
