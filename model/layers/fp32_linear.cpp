#include "model/layers/fp32_linear.h"

#include <utility>

#include "tensor/ops/low_precision/accumulate_copy.h"

namespace mcpp {
namespace {

/// Calls f(sum, beta), which must compute beta sum + contribution in `dtype`, to add to a gradient of any dtype.
template <class F>
void accumulate(Tensor& gradient, float beta, DType dtype, const F& f) {
  if (gradient.dtype() == dtype) return f(gradient, beta);
  Tensor sum = Tensor::empty(gradient.shape(), dtype, gradient.device());
  f(sum, 0.0f);
  beta == 0 ? ops::copy(sum, gradient) : add_converted(sum, gradient);
}

}  // namespace

Fp32Linear::Fp32Linear(const std::string& name, const ModelContext& context, i64 outputs, bool has_bias, bool is_fp64)
    : dtype_(is_fp64 ? DType::F64 : accumulate_dtype(context.dtype)),
      weight_(name + ".weight", Shape{outputs, context.config.hidden_size}, Init::Normal,
              context.config.init_method_std) {
  if (has_bias) bias_ = std::make_unique<Param>(name + ".bias", Shape{outputs}, Init::Zeros);
}

Tensor Fp32Linear::forward(const Tensor& x) const {
  const Tensor w = to_dtype(weight_.value, dtype_);
  Tensor y = Tensor::empty({x.dim(0), w.dim(0)}, dtype_, x.device());
  ops::matmul(to_dtype(x, dtype_), w, y, {.transpose_b = true});
  if (bias_) ops::add_bias(y, to_dtype(bias_->value, dtype_));
  return y;
}

Tensor Fp32Linear::input_gradient(const Tensor& dy) const {
  const Tensor w = to_dtype(weight_.value, dtype_);
  Tensor dx = Tensor::empty({dy.dim(0), w.dim(1)}, dtype_, dy.device());
  ops::matmul(dy, w, dx);
  return dx;
}

void Fp32Linear::weight_gradient(const Tensor& dy, std::function<Tensor()> x, MicrobatchContext& microbatch) {
  microbatch.run_or_delay_wgrad([this, dy, x = std::move(x)] {
    weight_.add_grad([&](Tensor& dw, float beta) {
      accumulate(dw, beta, dtype_, [&](Tensor& sum, float sum_beta) {
        ops::matmul(dy, to_dtype(x(), dtype_), sum, {.transpose_a = true, .beta = sum_beta});
      });
    });
  });
}

void Fp32Linear::bias_gradient(const Tensor& dy) {
  if (!bias_) return;
  bias_->add_grad([&](Tensor& db, float beta) {
    accumulate(db, beta, dtype_, [&](Tensor& sum, float sum_beta) { ops::column_sum(dy, sum, sum_beta); });
  });
}

void Fp32Linear::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

}  // namespace mcpp
