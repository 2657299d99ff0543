#include "model/layers/wide_linear.h"

#include <utility>

#include "tensor/ops/narrow/widened.h"

namespace mcpp {

WideLinear::WideLinear(const std::string& name, const ModelContext& context, i64 outputs)
    : weight_(name + ".weight", Shape{outputs, context.config.hidden_size}, Init::Normal,
              context.config.init_method_std) {}

Tensor WideLinear::forward(const Tensor& x) const {
  const Tensor w = widened(weight_.value);
  Tensor y = Tensor::empty({x.dim(0), w.dim(0)}, w.dtype(), x.device());
  ops::matmul(widened(x), w, y, {.transpose_b = true});
  return y;
}

Tensor WideLinear::input_gradient(const Tensor& dy) const {
  const Tensor w = widened(weight_.value);
  Tensor dx = Tensor::empty({dy.dim(0), w.dim(1)}, w.dtype(), dy.device());
  ops::matmul(dy, w, dx);
  return dx;
}

void WideLinear::weight_gradient(const Tensor& dy, std::function<Tensor()> x, Pass& pass) {
  pass.run_or_defer([this, dy, x = std::move(x)] {
    weight_.add_grad(
        [&](Tensor& dw, float beta) { ops::matmul(dy, widened(x()), dw, {.transpose_a = true, .beta = beta}); });
  });
}

}  // namespace mcpp
