#include "parallel/tp/linear.h"

#include "parallel/tp/split.h"
#include "tensor/ops.h"

namespace mcpp {
namespace {

Shape append(Shape shape, i64 last) {
  shape.push_back(last);
  return shape;
}

Shape with_last(const Tensor& x, i64 last) {
  Shape shape = x.shape();
  shape.back() = last;
  return shape;
}

}  // namespace

ParallelLinear::ParallelLinear(const std::string& name, Box weight, Box bias, Communicator& tp,
                               const LinearOptions& options)
    : tp_(tp),
      skip_bias_add_(options.skip_bias_add),
      weight_(name + ".weight", std::move(weight), Init::Normal, options.init_std) {
  if (options.bias) bias_ = std::make_unique<Param>(name + ".bias", std::move(bias), Init::Zeros);
}

void ParallelLinear::visit(const ParamVisitor& f) {
  f(weight_);
  if (bias_) f(*bias_);
}

Tensor ParallelLinear::multiply(const Tensor& x) const {
  const Tensor w = weight_.value.as_matrix();
  Tensor y = Tensor::like(x, with_last(x, w.dim(0)));
  Tensor y_matrix = y.as_matrix();
  ops::matmul(x.as_matrix(), w, y_matrix, {.transpose_b = true});
  return y;
}

Tensor ParallelLinear::input_gradient(const Tensor& dy) const {
  const Tensor w = weight_.value.as_matrix();
  Tensor dx = Tensor::like(dy, with_last(dy, w.dim(1)));
  Tensor dx_matrix = dx.as_matrix();
  ops::matmul(dy.as_matrix(), w, dx_matrix);
  return dx;
}

void ParallelLinear::weight_gradient(const Tensor& dy, const Tensor& x, Pass& pass) {
  pass.weights([this, dy, x] {
    Tensor dw = weight_.main_grad.as_matrix();
    ops::matmul(dy.as_matrix(), x.as_matrix(), dw, {.transpose_a = true, .beta = weight_.take_beta()});
    if (bias_) ops::column_sum(dy.as_matrix(), bias_->main_grad, bias_->take_beta());
  });
}

void ParallelLinear::add_bias(Tensor& y) const {
  if (!bias_ || skip_bias_add_) return;
  ops::add_bias(y, bias_->value);
}

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, i64 in, const Shape& out, int split_axis,
                                           Communicator& tp, const LinearOptions& options)
    : ParallelLinear(name, split_box(append(out, in), split_axis, tp), split_box(out, split_axis, tp), tp, options) {}

Tensor ColumnParallelLinear::forward(const Tensor& x, Pass& pass) {
  pass.save(this, x);
  Tensor y = multiply(x);
  add_bias(y);
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& dy, Pass& pass) {
  const Tensor x = pass.take(this);
  Tensor dx = input_gradient(dy);
  Work sum = tp_.all_reduce(dx, ReduceOp::Sum);
  weight_gradient(dy, x, pass);  // hides the sum
  sum.wait();
  return dx;
}

RowParallelLinear::RowParallelLinear(const std::string& name, i64 in, i64 out, Communicator& tp,
                                     const LinearOptions& options)
    : ParallelLinear(name, split_box({out, in}, 1, tp), Box{{out}, {0}, {out}}, tp, options) {}

Tensor RowParallelLinear::forward(const Tensor& x, Pass& pass) {
  pass.save(this, x);
  Tensor y = multiply(x);
  tp_.all_reduce(y, ReduceOp::Sum).wait();
  add_bias(y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& dy, Pass& pass) {
  const Tensor x = pass.take(this);
  Tensor dx = input_gradient(dy);
  weight_gradient(dy, x, pass);
  return dx;
}

}  // namespace mcpp
