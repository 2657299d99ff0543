#include "tensor/ops/ops.h"

#include "tensor/dtype.h"
#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/kernels.h"
#include "tensor/ops/op_records.h"
#include "tensor/transfer.h"

namespace mcpp::ops {
namespace {

OpRecord bias_gradient_record(const Tensor& dy, const Tensor& db) {
  OpRecord record = element_record(OpKind::Bias, dy.numel(), true);
  record.is_weight_gradient = is_main_grad(db);
  return record;
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, Tensor& c, const MatmulOptions& options) {
  check_matmul("matmul", a, b, c, options);
  on_device(
      c, [&] { return matmul_record(a, b, c, options); },
      [&]<DeviceType D>() { Kernels<D>::matmul(a, b, c, options); });
}

void fill_zero(Tensor& x) {
  on_device(
      x, [&] { return memory_record({&x}); }, [&]<DeviceType D>() { Kernels<D>::fill_zero(x); });
}

void fill(Tensor& x, double value) {
  MCPP_CHECK(is_float(x.dtype()), "fill: the tensor must be floating-point, not ", name_of(x.dtype()));
  on_device(
      x, [&] { return memory_record({&x}); }, [&]<DeviceType D>() { Kernels<D>::fill(x, value); });
}

void copy(const Tensor& src, Tensor& dst) {
  MCPP_CHECK(
      src.numel() == dst.numel() && (src.dtype() == dst.dtype() || (is_float(src.dtype()) && is_float(dst.dtype()))),
      "copy: cannot copy ", name_of(src.dtype()), " ", src.shape(), " to ", name_of(dst.dtype()), " ", dst.shape());
  on_device(
      dst,
      [&] {
        return memory_record({&src, &dst});
      },
      [&]<DeviceType D>() { Kernels<D>::copy(src, dst); });
}

void scale(Tensor& x, double factor) {
  on_device(x, [&]<DeviceType D>() { Kernels<D>::scale(x, factor); });
}

void soft_cap(Tensor& x, double cap) {
  MCPP_CHECK(cap > 0, "soft_cap: cap must be positive, not ", cap);
  on_device(x, [&]<DeviceType D>() { Kernels<D>::soft_cap(x, cap); });
}

void add_to(const Tensor& x, Tensor& y) {
  check_same("add_to", "y", y, x);
  on_device(
      y,
      [&] {
        return memory_record({&x, &y, &y});
      },
      [&]<DeviceType D>() { Kernels<D>::add_to(x, y); });
}

double sum_of_squares(const Tensor& x) {
  Tensor sum = Tensor::zeros({1}, DType::F64, x.device(), MemoryClass::Workspace);
  add_sum_of_squares(x, sum);
  return read_values<double>(sum)[0];
}

void add_sum_of_squares(const Tensor& x, Tensor& sum) {
  check_fp64("add_sum_of_squares", "sum", sum, 1);
  on_device(x, [&]<DeviceType D>() { Kernels<D>::add_sum_of_squares(x, sum); });
}

void normalize(Tensor& x, const Tensor& squares, double eps) {
  check_fp64("normalize", "squares", squares, 1);
  on_device(x, [&]<DeviceType D>() { Kernels<D>::normalize(x, squares, eps); });
}

void column_sum(const Tensor& dy, Tensor& db, float beta) {
  check_accumulate_dtype("column_sum", "db", db, dy, dy.dim(-1));
  on_device(
      dy, [&] { return bias_gradient_record(dy, db); }, [&]<DeviceType D>() { Kernels<D>::column_sum(dy, db, beta); });
}

void add_bias(Tensor& x, const Tensor& bias) {
  check_vector("add_bias", "bias", bias, x, x.dim(-1));
  on_device(
      x, [&] { return element_record(OpKind::Bias, x.numel()); },
      [&]<DeviceType D>() { Kernels<D>::add_bias(x, bias); });
}

void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule, Tensor& y, Tensor& mean,
                Tensor& rstd) {
  check_vector("layer_norm", "weight", w, x, x.dim(-1));
  check_vector("layer_norm", "bias", b, x, x.dim(-1));
  check_same("layer_norm", "y", y, x);
  check_accumulate_dtype("layer_norm", "mean", mean, x, row_count(x));
  check_accumulate_dtype("layer_norm", "rstd", rstd, x, row_count(x));
  MCPP_CHECK(!rule.squares.defined(), "layer_norm: rows must not be sharded");
  on_device(
      x, [&] { return element_record(OpKind::Norm, x.numel()); },
      [&]<DeviceType D>() { Kernels<D>::layer_norm(x, w, b, rule, y, mean, rstd); });
}

void layer_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  check_same("layer_norm_backward", "dy", dy, y.x);
  check_same("layer_norm_backward", "dx", gradients.dx, y.x);
  check_accumulate_dtype("layer_norm_backward", "mean", y.mean, y.x, row_count(y.x));
  check_accumulate_dtype("layer_norm_backward", "rstd", y.rstd, y.x, row_count(y.x));
  check_accumulate_dtype("layer_norm_backward", "dw", gradients.dw, y.x, y.x.dim(-1));
  check_accumulate_dtype("layer_norm_backward", "db", gradients.db, y.x, y.x.dim(-1));
  on_device(
      dy, [&] { return element_record(OpKind::Norm, dy.numel(), true); },
      [&]<DeviceType D>() { Kernels<D>::layer_norm_backward(dy, y, gradients); });
}

void rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y, Tensor& rstd) {
  check_vector("rms_norm", "weight", w, x, x.dim(-1));
  check_same("rms_norm", "y", y, x);
  check_accumulate_dtype("rms_norm", "rstd", rstd, x, row_count(x));
  check_row_sums("rms_norm", "squares", rule.squares, rule.all_columns, x);
  on_device(
      x, [&] { return element_record(OpKind::Norm, x.numel()); },
      [&]<DeviceType D>() { Kernels<D>::rms_norm(x, w, rule, y, rstd); });
}

void rms_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  check_same("rms_norm_backward", "dy", dy, y.x);
  check_same("rms_norm_backward", "dx", gradients.dx, y.x);
  check_accumulate_dtype("rms_norm_backward", "rstd", y.rstd, y.x, row_count(y.x));
  check_accumulate_dtype("rms_norm_backward", "dw", gradients.dw, y.x, y.x.dim(-1));
  check_row_sums("rms_norm_backward", "dots", y.dots, y.all_columns, y.x);
  on_device(
      dy, [&] { return element_record(OpKind::Norm, dy.numel(), true); },
      [&]<DeviceType D>() { Kernels<D>::rms_norm_backward(dy, y, gradients); });
}

void row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset, Tensor& dots) {
  check_same("row_dots", "b", b, a);
  if (w) check_vector("row_dots", "weight", *w, a, a.dim(-1));
  check_accumulate_dtype("row_dots", "dots", dots, a, row_count(a));
  on_device(
      a,
      [&] {
        return memory_record({&a, &b});
      },
      [&]<DeviceType D>() { Kernels<D>::row_dots(a, b, w, weight_offset, dots); });
}

namespace {

void check_rule(const char* op, const ActivationRule& rule) {
  MCPP_CHECK(rule.clamp >= 0 && (is_gated(rule.function) || !rule.is_limited()), op,
             ": only gated activations have a limit, at least 0, or an offset");
}

}  // namespace

void activation(const ActivationRule& a, const Tensor& x, const Tensor* bias, Tensor& y) {
  check_rule("activation", a);
  MCPP_CHECK(x.numel() == y.numel() * (is_gated(a.function) ? 2 : 1) && x.dtype() == y.dtype(), "activation: x ",
             x.shape(), " and y ", y.shape(), " do not match");
  if (bias) check_vector("activation", "bias", *bias, x, x.dim(-1));
  on_device(
      x, [&] { return element_record(OpKind::Activation, x.numel() + y.numel()); },
      [&]<DeviceType D>() { Kernels<D>::activation(a, x, bias, y); });
}

void activation_backward(const ActivationRule& a, const Tensor& dy, const Tensor& x, const Tensor* bias, Tensor& dx) {
  check_rule("activation_backward", a);
  MCPP_CHECK(x.numel() == dy.numel() * (is_gated(a.function) ? 2 : 1) && x.dtype() == dy.dtype(),
             "activation_backward: x ", x.shape(), " and dy ", dy.shape(), " do not match");
  check_same("activation_backward", "dx", dx, x);
  if (bias) check_vector("activation_backward", "bias", *bias, x, x.dim(-1));
  on_device(
      x, [&] { return element_record(OpKind::Activation, dy.numel() + 2 * x.numel(), true); },
      [&]<DeviceType D>() { Kernels<D>::activation_backward(a, dy, x, bias, dx); });
}

void sigmoid_gate(const Tensor& x, const Tensor& gate, Tensor& y) {
  check_same("sigmoid_gate", "gate", gate, x);
  check_same("sigmoid_gate", "y", y, x);
  on_device(
      x,
      [&] {
        return memory_record({&x, &gate, &y});
      },
      [&]<DeviceType D>() { Kernels<D>::sigmoid_gate(x, gate, y); });
}

void sigmoid_gate_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, Tensor& dx, Tensor& d_gate) {
  check_same("sigmoid_gate_backward", "x", x, dy);
  check_same("sigmoid_gate_backward", "gate", gate, dy);
  check_same("sigmoid_gate_backward", "dx", dx, dy);
  check_same("sigmoid_gate_backward", "d_gate", d_gate, dy);
  on_device(
      dy,
      [&] {
        return memory_record({&dy, &x, &gate, &dx, &d_gate});
      },
      [&]<DeviceType D>() { Kernels<D>::sigmoid_gate_backward(dy, x, gate, dx, d_gate); });
}

void bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual, const Dropout& dropout, Tensor& y) {
  check_same("bias_dropout_add", "residual", residual, x);
  check_same("bias_dropout_add", "y", y, x);
  if (bias) check_vector("bias_dropout_add", "bias", *bias, x, x.dim(-1));
  check_dropout("bias_dropout_add", dropout, row_count(x));
  on_device(
      x, [&] { return element_record(OpKind::Residual, x.numel()); },
      [&]<DeviceType D>() { Kernels<D>::bias_dropout_add(x, bias, residual, dropout, y); });
}

void dropout(const Tensor& x, const Dropout& dropout, Tensor& y) {
  check_same("dropout", "y", y, x);
  check_dropout("dropout", dropout, row_count(x));
  on_device(
      x, [&] { return element_record(OpKind::Dropout, x.numel(), true); },
      [&]<DeviceType D>() { Kernels<D>::dropout(x, dropout, y); });
}

void jitter(const Tensor& x, const Dropout& draws, Tensor& y) {
  check_same("jitter", "y", y, x);
  check_dropout("jitter", draws, row_count(x));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::jitter(x, draws, y); });
}

void embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y) {
  MCPP_CHECK(tokens.dtype() == DType::I32 && table.rank() == 2, "embedding: tokens must be int32, not ",
             name_of(tokens.dtype()), ", and table a matrix, not ", table.shape());
  check_vector("embedding", "y", y, table, tokens.numel() * table.dim(1));
  on_device(y, [&]<DeviceType D>() { Kernels<D>::embedding(tokens, table, first_row, y); });
}

void embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable, float beta) {
  MCPP_CHECK(tokens.dtype() == DType::I32 && dtable.rank() == 2 && dy.numel() == tokens.numel() * dtable.dim(1) &&
                 dtable.dtype() == accumulate_dtype(dy.dtype()),
             "embedding_backward: dy ", dy.shape(), " and dtable ", dtable.shape(), " do not match");
  on_device(dy, [&]<DeviceType D>() { Kernels<D>::embedding_backward(dy, tokens, first_row, dtable, beta); });
}

void cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, Tensor& largest,
                         Tensor& sum_exp, Tensor& target_logit) {
  MCPP_CHECK(logits.rank() == 2 && targets.dtype() == DType::I32 && targets.numel() == logits.dim(0) &&
                 valid_columns <= logits.dim(1),
             "cross_entropy_stats: logits ", logits.shape(), " and targets ", targets.shape(), " do not match");
  check_accumulate_dtype("cross_entropy_stats", "largest", largest, logits, logits.dim(0));
  check_accumulate_dtype("cross_entropy_stats", "sum_exp", sum_exp, logits, logits.dim(0));
  check_accumulate_dtype("cross_entropy_stats", "target_logit", target_logit, logits, logits.dim(0));
  const auto describe = [&] { return element_record(OpKind::Loss, logits.numel()); };
  on_device(logits, describe, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_stats(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
  });
}

void cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest, Tensor& sum_exp) {
  check_same("cross_entropy_rescale", "largest", largest, own_largest);
  check_accumulate_dtype("cross_entropy_rescale", "sum_exp", sum_exp, own_largest, own_largest.numel());
  on_device(sum_exp, [&]<DeviceType D>() { Kernels<D>::cross_entropy_rescale(own_largest, largest, sum_exp); });
}

void cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit, const Tensor& targets,
                          Tensor& losses, Tensor& totals) {
  for (const Tensor* t : {&sum_exp, &target_logit, static_cast<const Tensor*>(&losses)}) {
    check_accumulate_dtype("cross_entropy_losses", "a number per row", *t, largest, largest.numel());
  }
  MCPP_CHECK(targets.dtype() == DType::I32 && targets.numel() == largest.numel(),
             "cross_entropy_losses: targets must be int32 with ", largest.numel(), " elements, not ", targets.shape());
  check_fp64("cross_entropy_losses", "totals", totals, 2);
  on_device(largest, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_losses(largest, sum_exp, target_logit, targets, losses, totals);
  });
}

void cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, const Tensor& lse,
                            double scale, double cap, const Tensor& factor) {
  MCPP_CHECK(logits.rank() == 2 && targets.numel() == logits.dim(0), "cross_entropy_gradient: logits ", logits.shape(),
             " and targets ", targets.shape(), " do not match");
  check_accumulate_dtype("cross_entropy_gradient", "lse", lse, logits, logits.dim(0));
  if (factor.defined()) check_fp64("cross_entropy_gradient", "factor", factor, 1);
  const auto describe = [&] { return element_record(OpKind::Loss, logits.numel(), true); };
  on_device(logits, describe, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, scale, cap, factor);
  });
}

void compute_update_scale(const Tensor& totals, const Tensor& squares, const StepRule& rule, Tensor& scalars) {
  check_fp64("compute_update_scale", "totals", totals, 2);
  check_fp64("compute_update_scale", "squares", squares, 1);
  check_fp64("compute_update_scale", "scalars", scalars, StepScalars::kCount);
  on_device(scalars, [&]<DeviceType D>() { Kernels<D>::compute_update_scale(totals, squares, rule, scalars); });
}

void adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step, Tensor* model) {
  for (const Tensor* t : std::initializer_list<const Tensor*>{&m, &v, &grad}) check_same("adamw", "state", *t, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "adamw: model and master weights differ in size");
  if (step.factor.defined()) check_fp64("adamw", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::adamw(master, m, v, grad, step, model); });
}

void sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step, Tensor* model) {
  for (const Tensor* t : std::initializer_list<const Tensor*>{&momentum, &grad}) check_same("sgd", "state", *t, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "sgd: model and master weights differ in size");
  if (step.factor.defined()) check_fp64("sgd", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::sgd(master, momentum, grad, step, model); });
}

void momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step) {
  check_same("momentum", "gradient", grad, buffer);
  if (step.factor.defined()) check_fp64("momentum", "factor", step.factor, 1);
  on_device(buffer, [&]<DeviceType D>() { Kernels<D>::momentum(buffer, grad, step); });
}

void apply_update(Tensor& master, const Tensor& direction, const ApplyUpdateStep& step, Tensor* model) {
  check_same("apply_update", "direction", direction, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "apply_update: model and master weights differ in size");
  if (step.factor.defined()) check_fp64("apply_update", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::apply_update(master, direction, step, model); });
}

}  // namespace mcpp::ops
