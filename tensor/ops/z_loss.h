// Z-loss of the output (Chowdhery et al., "PaLM", 2022, section 5): coeff * lse^2 per token with lse =
// log(sum(exp(logits))), which keeps the logits small.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

namespace ops {

/// Prepares ops::cross_entropy_gradient() for a loss that includes the z-loss. lse, fp32 (fp64) [T], becomes
/// lse - log(1 + 2 coeff lse): then the gradient, exp(logits - lse) - [target], equals the gradient of the cross
/// entropy plus coeff lse^2. 1 + 2 coeff lse counts as at least 2^-20. total, fp64 [1]: coeff times the sum of lse^2
/// over the rows with a target (int32 targets [T], negative = no target), in a fixed order.
void z_loss(Tensor& lse, const Tensor& targets, double coeff, Tensor& total);

}  // namespace ops

/// Smallest factor of the exponentials, which an lse below -1 / (2 coeff) has.
inline constexpr double kMinZLossFactor = 0x1p-20;

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct ZLossKernels {
  static decltype(ops::z_loss) z_loss;
};

}  // namespace mcpp
