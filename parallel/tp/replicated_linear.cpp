#include "parallel/tp/replicated_linear.h"

namespace mcpp {

ReplicatedLinear::ReplicatedLinear(const std::string& name, i64 in, i64 out, Communicator& tp,
                                   const LinearOptions& options)
    : tp_(tp),
      placement_(TensorParallelRegion(tp, options.sequence_parallel).outer_placement()),
      fp8_(options.fp8),
      slice_(name, slab({out, in}, 0, 0, out), slab({out}, 0, 0, out), options) {
  slice_.visit([&](Param& param) { param.placement.tp = {gradient_spread(placement_)}; });
}

Tensor ReplicatedLinear::forward(const Tensor& x, MicrobatchContext& context) {
  context.save(this, x);
  return slice_.multiply_add(x, fp8_.forward(this, x, {slice_.weight.value}, context));
}

Tensor ReplicatedLinear::backward(const Tensor& dy, MicrobatchContext& context) {
  const i64 first_row = placement_ == ActivationPlacement::SequenceSharded ? tp_.rank() * dy.dim(0) : 0;
  const LinearScales scales = fp8_.backward(this, {dy}, context, first_row);
  const Tensor x = context.take(this);
  Tensor dx = slice_.input_gradient(dy, scales);
  context.run_or_delay_wgrad([this, dy, x, scales] { slice_.weight_gradient(dy, x, scales); });
  return dx;
}

ActivationPlacement ReplicatedLinear::output_placement(ActivationPlacement x) const {
  MCPP_CHECK(x == placement_, slice_.weight.name, " expects activations that are ", name_of(placement_),
             ", but receives activations that are ", name_of(x));
  check_gradient_spread(slice_.weight, x);
  if (slice_.bias) check_gradient_spread(*slice_.bias, x);
  return x;
}

}  // namespace mcpp
