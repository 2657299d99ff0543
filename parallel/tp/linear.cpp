#include "parallel/tp/linear.h"

#include "parallel/tp/mappings.h"
#include "tensor/ops/fused/gelu_epilogue.h"
#include "tensor/ops/ops.h"

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

LinearSlice::LinearSlice(const std::string& name, Box weight_box, Box bias_box, const LinearOptions& options)
    : weight(name + ".weight", std::move(weight_box), Init::Normal, options.init_std) {
  const Shape& global = weight.box.global;
  weight.matrices = options.matrices.empty() ? std::vector{slab(global, 0, 0, global[0])} : options.matrices;
  weight.head_rows = options.head_rows;
  columns_ = output_columns(weight.name, weight.box);
  if (options.fp8) set_fp8_rounding(weight, name, options.fp8->passes);
  if (options.bias) bias = std::make_unique<Param>(name + ".bias", std::move(bias_box), Init::Zeros);
}

void LinearSlice::multiply(const Tensor& x, const LinearScales& scales, Tensor& y) const {
  Tensor y_matrix = y.as_matrix();
  multiply_scaled(x.as_matrix(), weight.value.as_matrix(), y_matrix, scales.forward(), {.transpose_b = true});
}

Tensor LinearSlice::multiply_add(const Tensor& x, const LinearScales& scales) const {
  Tensor y = Tensor::like(x, with_last(x, outputs()));
  multiply(x, scales, y);
  add_bias(y);
  return y;
}

void LinearSlice::add_bias(Tensor& y) const {
  if (bias) ops::add_bias(y, bias->value);
}

void LinearSlice::multiply_gelu(const Tensor& x, Tensor& u, Tensor& y) const {
  Tensor y_matrix = y.as_matrix(), u_matrix = u.as_matrix();
  ops::matmul_gelu(x.as_matrix(), weight.value.as_matrix(), bias ? &bias->value : nullptr, u_matrix, y_matrix);
}

void LinearSlice::input_gradient_gelu(const Tensor& dy, const Tensor& u, Tensor& du) const {
  Tensor du_matrix = du.as_matrix();
  ops::matmul_gelu_backward(dy.as_matrix(), weight.value.as_matrix(), u.as_matrix(), du_matrix);
}

Tensor LinearSlice::input_gradient(const Tensor& dy, const LinearScales& scales) const {
  Tensor dx = Tensor::like(dy, with_last(dy, inputs()));
  input_gradient(dy, scales, dx);
  return dx;
}

void LinearSlice::input_gradient(const Tensor& dy, const LinearScales& scales, Tensor& dx) const {
  Tensor dx_matrix = dx.as_matrix();
  multiply_scaled(dy.as_matrix(), weight.value.as_matrix(), dx_matrix, scales.dgrad(columns_));
}

void LinearSlice::add_input_gradient(const Tensor& dy, const LinearScales& scales, Tensor& dx) const {
  Tensor dx_matrix = dx.as_matrix();
  multiply_scaled(dy.as_matrix(), weight.value.as_matrix(), dx_matrix, scales.dgrad(columns_), {.beta = 1});
}

void LinearSlice::weight_gradient(const Tensor& dy, const Tensor& x, const LinearScales& scales) {
  weight.add_grad([&](const Tensor& sum, float beta) {
    Tensor dw = sum.as_matrix();
    multiply_scaled(dy.as_matrix(), x.as_matrix(), dw, scales.wgrad(columns_), {.transpose_a = true, .beta = beta});
  });
  if (bias) bias->add_grad([&](Tensor& db, float beta) { ops::column_sum(dy.as_matrix(), db, beta); });
}

void LinearSlice::visit(const ParamVisitor& f) {
  f(weight);
  if (bias) f(*bias);
}

ColumnParallelLinear::ColumnParallelLinear(const std::string& name, i64 in, const Shape& out, int split_axis,
                                           Communicator& tp, const LinearOptions& options, bool gather_output)
    : region_(tp, options.sequence_parallel, overlaps_communication(options.tp_comm_overlap, options.fp8)),
      fp8_(options.fp8),
      slice_(name, split_box(append(out, in), split_axis, tp), split_box(out, split_axis, tp), options),
      skip_bias_add_(options.skip_bias_add),
      gather_output_(gather_output) {
  MCPP_CHECK(!gather_output || out.size() == 1, name, ": gather_output needs an output with one axis, not ", out);
}

Tensor ColumnParallelLinear::forward(const Tensor& x, MicrobatchContext& context) {
  context.save(this, x);
  const LinearScales scales = fp8_.forward(this, x, {slice_.weight.value}, context);
  Tensor y = Tensor::like(x, region_.full_shape(x, slice_.outputs()));
  region_.gather_and_multiply(x, [&](const Tensor& rows, i64 first) {
    Tensor y_rows = rows_like(rows, y, first);
    slice_.multiply(rows, scales, y_rows);
  });
  if (!skip_bias_add_) slice_.add_bias(y);
  return gather_output_ ? gather_from_tensor_parallel_region(y, region_.tp()) : y;
}

Tensor ColumnParallelLinear::forward_gelu(const Tensor& x, MicrobatchContext& context, Tensor& u) {
  MCPP_CHECK(skip_bias_add_ && !gather_output_, slice_.weight.name, " does not support a fused GELU");
  context.save(this, x);
  Tensor y = Tensor::like(x, region_.full_shape(x, slice_.outputs()));
  u = Tensor::like(y);
  region_.gather_and_multiply(x, [&](const Tensor& rows, i64 first) {
    Tensor u_rows = rows_like(rows, u, first), y_rows = rows_like(rows, y, first);
    slice_.multiply_gelu(rows, u_rows, y_rows);
  });
  return y;
}

Tensor ColumnParallelLinear::backward(const Tensor& dy, MicrobatchContext& context) {
  const Tensor own_dy = gather_output_ ? scatter_to_tensor_parallel_region(dy, region_.tp()) : dy;
  const LinearScales scales = fp8_.backward(this, {own_dy}, context);
  const Tensor x = context.take(this);
  return region_.backward(
      x, context, [&](Tensor& dx, i64 first) { slice_.input_gradient(rows_like(dx, own_dy, first), scales, dx); },
      [this, own_dy, scales](const Tensor& full_x) { slice_.weight_gradient(own_dy, full_x, scales); });
}

ActivationPlacement ColumnParallelLinear::output_placement(ActivationPlacement x) const {
  region_.check_entry(x, slice_.weight.name);
  return gather_output_ ? ActivationPlacement::Replicated : ActivationPlacement::ColumnSharded;
}

RowParallelLinear::RowParallelLinear(const std::string& name, i64 in, i64 out, Communicator& tp,
                                     const LinearOptions& options, bool input_is_parallel)
    : region_(tp, options.sequence_parallel, overlaps_communication(options.tp_comm_overlap, options.fp8)),
      fp8_(options.fp8),
      slice_(name, split_box({out, in}, 1, tp), Box{{out}, {0}, {out}}, options),
      skip_bias_add_(options.skip_bias_add),
      input_is_parallel_(input_is_parallel) {
  if (slice_.bias) slice_.bias->placement.tp = {gradient_spread(ActivationPlacement::Replicated)};
}

Tensor RowParallelLinear::forward(const Tensor& x, MicrobatchContext& context) {
  const Tensor own_x = input_is_parallel_ ? x : scatter_to_tensor_parallel_region(x, region_.tp());
  context.save(this, own_x);
  const LinearScales scales = fp8_.forward(this, own_x, {slice_.weight.value}, context);
  Tensor y = region_.multiply_and_sum(own_x, with_last(own_x, slice_.outputs()), [&](Tensor& rows, i64 first) {
    slice_.multiply(rows_like(rows, own_x, first), scales, rows);
  });
  if (!skip_bias_add_) slice_.add_bias(y);
  return y;
}

Tensor RowParallelLinear::backward(const Tensor& dy, MicrobatchContext& context) {
  const LinearScales scales = fp8_.backward(this, {dy}, context);
  const Tensor x = context.take(this);
  Tensor dx = Tensor::like(dy, region_.full_shape(dy, slice_.inputs()));
  const Tensor full_dy = region_.gather_and_multiply(dy, [&](const Tensor& rows, i64 first) {
    Tensor dx_rows = rows_like(rows, dx, first);
    slice_.input_gradient(rows, scales, dx_rows);
  });
  weight_gradient(dy, full_dy, x, scales, context);
  return input_is_parallel_ ? dx : gather_from_tensor_parallel_region(dx, region_.tp());
}

Tensor RowParallelLinear::backward_gelu(const Tensor& dy, MicrobatchContext& context,
                                        const std::function<Tensor()>& take_u) {
  MCPP_CHECK(input_is_parallel_, slice_.weight.name, " does not support a fused GELU");
  const Tensor x = context.take(this), u = take_u();
  Tensor du = Tensor::like(u);
  const Tensor full_dy = region_.gather_and_multiply(dy, [&](const Tensor& rows, i64 first) {
    Tensor du_rows = rows_like(rows, du, first);
    slice_.input_gradient_gelu(rows, rows_like(rows, u, first), du_rows);
  });
  weight_gradient(dy, full_dy, x, {}, context);
  return du;
}

void RowParallelLinear::weight_gradient(const Tensor& dy, const Tensor& full_dy, const Tensor& x,
                                        const LinearScales& scales, MicrobatchContext& context) {
  if (context.delay_wgrad_compute) {  // keeps only this rank's part, like TensorParallelRegion::backward()
    context.run_or_delay_wgrad(
        [this, dy, x, scales] { slice_.weight_gradient(region_.gather_sequence(dy).wait(), x, scales); });
  } else {
    slice_.weight_gradient(full_dy, x, scales);
  }
}

ActivationPlacement RowParallelLinear::output_placement(ActivationPlacement x) const {
  const ActivationPlacement expected =
      input_is_parallel_ ? ActivationPlacement::ColumnSharded : ActivationPlacement::Replicated;
  MCPP_CHECK(x == expected, slice_.weight.name, " expects activations that are ", name_of(expected),
             ", but receives activations that are ", name_of(x));
  // The bias gradient is always computed from the full dy, which backward gathers.
  if (slice_.bias) check_gradient_spread(*slice_.bias, ActivationPlacement::Replicated);
  return region_.outer_placement();
}

}  // namespace mcpp
