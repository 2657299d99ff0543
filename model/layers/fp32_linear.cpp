#include "model/layers/fp32_linear.h"

#include <utility>

#include "tensor/ops/low_precision/accumulate_copy.h"

namespace mcpp {

Fp32Linear::Fp32Linear(const std::string& name, const ModelContext& context, i64 outputs, bool has_bias)
    : weight_(name + ".weight", Shape{outputs, context.config.hidden_size}, Init::Normal,
              context.config.init_method_std) {
  if (has_bias) bias_ = std::make_unique<Param>(name + ".bias", Shape{outputs}, Init::Zeros);
}

Tensor Fp32Linear::forward(const Tensor& x) const {
  const Tensor w = to_accumulate_dtype(weight_.value);
  Tensor y = Tensor::empty({x.dim(0), w.dim(0)}, w.dtype(), x.device());
  ops::matmul(to_accumulate_dtype(x), w, y, {.transpose_b = true});
  if (bias_) ops::add_bias(y, to_accumulate_dtype(bias_->value));
  return y;
}

Tensor Fp32Linear::input_gradient(const Tensor& dy) const {
  const Tensor w = to_accumulate_dtype(weight_.value);
  Tensor dx = Tensor::empty({dy.dim(0), w.dim(1)}, w.dtype(), dy.device());
  ops::matmul(dy, w, dx);
  return dx;
}

void Fp32Linear::weight_gradient(const Tensor& dy, std::function<Tensor()> x, MicrobatchContext& microbatch) {
  microbatch.run_or_delay_wgrad([this, dy, x = std::move(x)] {
    weight_.add_grad([&](Tensor& dw, float beta) {
      ops::matmul(dy, to_accumulate_dtype(x()), dw, {.transpose_a = true, .beta = beta});
    });
  });
}

void Fp32Linear::bias_gradient(const Tensor& dy) {
  if (bias_) bias_->add_grad([&](Tensor& db, float beta) { ops::column_sum(dy, db, beta); });
}

void Fp32Linear::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

}  // namespace mcpp
