#include "tensor/ops/ops.h"

#include <cmath>

#include "tensor/on_device.h"
#include "tensor/ops/kernels.h"
#include "tensor/transfer.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

void check_shape(const char* op, const char* name, const Tensor& t, const Shape& wanted) {
  MCPP_CHECK(t.defined() && t.shape() == wanted, op, ": ", name, " has shape ", t.defined() ? t.shape() : Shape{},
             ", not ", wanted);
}

void check_wide(const char* op, const char* name, const Tensor& t, const Tensor& x, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == wide(x.dtype()), op, ": ", name, " must be ",
             name_of(wide(x.dtype())), " with ", count, " elements");
}

void check_same(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  MCPP_CHECK(t.defined() && t.numel() == x.numel() && t.dtype() == x.dtype(), op, ": ", name,
             " must be like the input ", x.shape());
}

void check_vector(const char* op, const char* name, const Tensor& t, const Tensor& x, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == x.dtype(), op, ": ", name, " must have ", count,
             " elements of ", name_of(x.dtype()));
}

void check_numbers(const char* op, const char* name, const Tensor& t, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == DType::F64, op, ": ", name, " must be ", count,
             " fp64 numbers");
}

void check_dropout(const char* op, const Dropout& d, i64 row_count) {
  if (d.p == 0) return;
  const i64 batch = static_cast<i64>(d.samples.size());
  MCPP_CHECK(d.p > 0 && d.p < 1 && batch > 0 && row_count % batch == 0, op, ": dropout of ", d.p, " over ", row_count,
             " rows with ", batch, " samples");
}

void check_heads(const char* op, const Heads& x) {
  MCPP_CHECK(x.base.defined() && is_float(x.base.dtype()) && x.group_size > 0 && x.heads % x.group_size == 0, op, ": ",
             x.heads, " heads in groups of ", x.group_size);
  const i64 last = x.offset + (x.seq - 1) * x.seq_stride + (x.batch - 1) * x.batch_stride +
                   (x.heads / x.group_size - 1) * x.group_stride + x.group_size * x.head_dim;
  MCPP_CHECK(x.seq == 0 || x.batch == 0 || last <= x.base.numel(), op, ": the heads end at ", last, " of ",
             x.base.numel());
}

void check_attention(const char* op, const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options) {
  for (const Heads* x : {&q, &k, &v}) check_heads(op, *x);
  MCPP_CHECK(q.heads % k.heads == 0 && k.heads == v.heads && k.seq == v.seq && q.head_dim == k.head_dim &&
                 k.head_dim == v.head_dim && q.batch == k.batch && k.batch == v.batch &&
                 q.base.dtype() == k.base.dtype() && k.base.dtype() == v.base.dtype(),
             op, ": q, k and v do not fit");
  MCPP_CHECK(!options.causal || k.seq >= q.seq + options.query_offset, op, ": ", q.seq, " queries from ",
             options.query_offset, " need as many keys, there are ", k.seq);
  check_dropout(op, options.dropout, q.batch);
}

}  // namespace

PackedHeads packed_heads(const Tensor& qkv) {
  MCPP_CHECK(qkv.rank() == 5 && qkv.dim(3) >= 3,
             "a fused QKV tensor is [s, b, groups, q_per_group + 2, head_dim], not ", qkv.shape());
  const i64 seq = qkv.dim(0), batch = qkv.dim(1), groups = qkv.dim(2), q_per_group = qkv.dim(3) - 2, d = qkv.dim(4);
  const i64 group_stride = (q_per_group + 2) * d;
  const Heads kv{
      qkv,         q_per_group * d, seq, batch, groups, d, 1, batch * groups * group_stride, groups * group_stride,
      group_stride};
  PackedHeads views{kv, kv, kv};
  views.q.offset = 0;
  views.q.heads = groups * q_per_group;
  views.q.group_size = q_per_group;
  views.v.offset += d;
  return views;
}

namespace ops {

void matmul(const Tensor& a, const Tensor& b, Tensor& c, const MatmulOptions& options) {
  MCPP_CHECK(a.rank() == 2 && b.rank() == 2 && c.rank() == 2, "matmul needs matrices: ", a.shape(), b.shape(),
             c.shape());
  const i64 m = a.dim(options.transpose_a ? 1 : 0), k = a.dim(options.transpose_a ? 0 : 1);
  const i64 n = b.dim(options.transpose_b ? 0 : 1);
  MCPP_CHECK(b.dim(options.transpose_b ? 1 : 0) == k && c.dim(0) == m && c.dim(1) == n, "matmul: ", a.shape(),
             options.transpose_a ? "^T" : "", " times ", b.shape(), options.transpose_b ? "^T" : "", " to ", c.shape());
  MCPP_CHECK(is_float(a.dtype()) && a.dtype() == b.dtype() && (c.dtype() == a.dtype() || c.dtype() == wide(a.dtype())),
             "matmul: ", name_of(a.dtype()), " times ", name_of(b.dtype()), " to ", name_of(c.dtype()));
  MCPP_CHECK(options.beta == 0 || options.beta == 1, "matmul: beta is 0 or 1, not ", options.beta);
  on_device(c, [&]<DeviceType D>() { Kernels<D>::matmul(a, b, c, options); });
}

void fill_zero(Tensor& x) {
  on_device(x, [&]<DeviceType D>() { Kernels<D>::fill_zero(x); });
}

void copy(const Tensor& src, Tensor& dst) {
  MCPP_CHECK(
      src.numel() == dst.numel() && (src.dtype() == dst.dtype() || (is_float(src.dtype()) && is_float(dst.dtype()))),
      "copy: ", src.shape(), name_of(src.dtype()), " to ", dst.shape(), name_of(dst.dtype()));
  on_device(dst, [&]<DeviceType D>() { Kernels<D>::copy(src, dst); });
}

void scale(Tensor& x, double factor) {
  on_device(x, [&]<DeviceType D>() { Kernels<D>::scale(x, factor); });
}

void add_to(const Tensor& x, Tensor& y) {
  check_same("add_to", "y", y, x);
  on_device(y, [&]<DeviceType D>() { Kernels<D>::add_to(x, y); });
}

double sum_of_squares(const Tensor& x) {
  Tensor sum = Tensor::zeros({1}, DType::F64, x.device(), MemoryClass::Workspace);
  add_sum_of_squares(x, sum);
  return read_values<double>(sum)[0];
}

void add_sum_of_squares(const Tensor& x, Tensor& sum) {
  check_numbers("add_sum_of_squares", "sum", sum, 1);
  on_device(x, [&]<DeviceType D>() { Kernels<D>::add_sum_of_squares(x, sum); });
}

void normalize(Tensor& x, const Tensor& squares, double eps) {
  check_numbers("normalize", "squares", squares, 1);
  on_device(x, [&]<DeviceType D>() { Kernels<D>::normalize(x, squares, eps); });
}

void column_sum(const Tensor& dy, Tensor& db, float beta) {
  check_wide("column_sum", "db", db, dy, dy.dim(-1));
  on_device(dy, [&]<DeviceType D>() { Kernels<D>::column_sum(dy, db, beta); });
}

void add_bias(Tensor& x, const Tensor& bias) {
  check_vector("add_bias", "bias", bias, x, x.dim(-1));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::add_bias(x, bias); });
}

void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, double eps, Tensor& y, Tensor& mean, Tensor& rstd) {
  check_vector("layer_norm", "weight", w, x, x.dim(-1));
  check_vector("layer_norm", "bias", b, x, x.dim(-1));
  check_same("layer_norm", "y", y, x);
  check_wide("layer_norm", "mean", mean, x, row_count(x));
  check_wide("layer_norm", "rstd", rstd, x, row_count(x));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::layer_norm(x, w, b, eps, y, mean, rstd); });
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                         Tensor& dx, bool add_to_dx, Tensor& dw, float beta_dw, Tensor& db, float beta_db) {
  check_same("layer_norm_backward", "dy", dy, x);
  check_same("layer_norm_backward", "dx", dx, x);
  check_wide("layer_norm_backward", "dw", dw, x, x.dim(-1));
  check_wide("layer_norm_backward", "db", db, x, x.dim(-1));
  on_device(x, [&]<DeviceType D>() {
    Kernels<D>::layer_norm_backward(dy, x, w, mean, rstd, dx, add_to_dx, dw, beta_dw, db, beta_db);
  });
}

void rms_norm(const Tensor& x, const Tensor& w, double eps, Tensor& y, Tensor& rstd) {
  check_vector("rms_norm", "weight", w, x, x.dim(-1));
  check_same("rms_norm", "y", y, x);
  check_wide("rms_norm", "rstd", rstd, x, row_count(x));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::rms_norm(x, w, eps, y, rstd); });
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, Tensor& dx,
                       bool add_to_dx, Tensor& dw, float beta_dw) {
  check_same("rms_norm_backward", "dy", dy, x);
  check_same("rms_norm_backward", "dx", dx, x);
  check_wide("rms_norm_backward", "dw", dw, x, x.dim(-1));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::rms_norm_backward(dy, x, w, rstd, dx, add_to_dx, dw, beta_dw); });
}

void activation(Activation a, const Tensor& x, const Tensor* bias, Tensor& y) {
  MCPP_CHECK(x.numel() == y.numel() * (is_gated(a) ? 2 : 1) && x.dtype() == y.dtype(), "activation: ", x.shape(),
             " to ", y.shape());
  if (bias) check_vector("activation", "bias", *bias, x, x.dim(-1));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::activation(a, x, bias, y); });
}

void activation_backward(Activation a, const Tensor& dy, const Tensor& x, const Tensor* bias, Tensor& dx) {
  MCPP_CHECK(x.numel() == dy.numel() * (is_gated(a) ? 2 : 1) && x.dtype() == dy.dtype(),
             "activation_backward: ", x.shape(), dy.shape());
  check_same("activation_backward", "dx", dx, x);
  if (bias) check_vector("activation_backward", "bias", *bias, x, x.dim(-1));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::activation_backward(a, dy, x, bias, dx); });
}

void bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual, const Dropout& dropout, Tensor& y) {
  check_same("bias_dropout_add", "residual", residual, x);
  check_same("bias_dropout_add", "y", y, x);
  if (bias) check_vector("bias_dropout_add", "bias", *bias, x, x.dim(-1));
  check_dropout("bias_dropout_add", dropout, row_count(x));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::bias_dropout_add(x, bias, residual, dropout, y); });
}

void dropout(const Tensor& x, const Dropout& dropout, Tensor& y) {
  check_same("dropout", "y", y, x);
  check_dropout("dropout", dropout, row_count(x));
  on_device(x, [&]<DeviceType D>() { Kernels<D>::dropout(x, dropout, y); });
}

void rope_table(double base, i64 dim, Tensor& cos, Tensor& sin) {
  const i64 positions = cos.dim(0), half = dim / 2;
  check_shape("rope_table", "cos", cos, {positions, half});
  check_shape("rope_table", "sin", sin, {positions, half});
  on_float(cos.dtype(), [&]<class T>() {
    std::vector<T> cosines, sines;
    for (i64 p = 0; p < positions; ++p) {
      for (i64 i = 0; i < half; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
        cosines.push_back(from_double<T>(std::cos(angle)));
        sines.push_back(from_double<T>(std::sin(angle)));
      }
    }
    write_values(cosines, cos);
    write_values(sines, sin);
  });
}

void rope(Heads& x, const Tensor& cos, const Tensor& sin, i64 first_position, bool inverse) {
  check_heads("rope", x);
  check_shape("rope", "sin", sin, cos.shape());
  MCPP_CHECK(cos.dtype() == wide(x.base.dtype()) && 2 * cos.dim(1) <= x.head_dim && first_position >= 0 &&
                 first_position + x.seq <= cos.dim(0),
             "rope: positions ", first_position, " to ", first_position + x.seq, " of a table ", cos.shape());
  on_device(x.base, [&]<DeviceType D>() { Kernels<D>::rope(x, cos, sin, first_position, inverse); });
}

void attention(const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options, Tensor& out,
               Tensor& lse) {
  check_attention("attention", q, k, v, options);
  check_vector("attention", "out", out, q.base, q.seq * q.batch * q.heads * q.head_dim);
  check_wide("attention", "lse", lse, q.base, q.batch * q.heads * q.seq);
  on_device(out, [&]<DeviceType D>() { Kernels<D>::attention(q, k, v, options, out, lse); });
}

void attention_backward(const Tensor& dout, const Heads& q, const Heads& k, const Heads& v, const Tensor& out,
                        const Tensor& lse, const AttentionOptions& options, Heads& dq, Heads& dk, Heads& dv) {
  check_attention("attention_backward", q, k, v, options);
  check_attention("attention_backward", dq, dk, dv, options);
  check_same("attention_backward", "dout", dout, out);
  on_device(out, [&]<DeviceType D>() { Kernels<D>::attention_backward(dout, q, k, v, out, lse, options, dq, dk, dv); });
}

void embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y) {
  MCPP_CHECK(tokens.dtype() == DType::I32 && table.rank() == 2, "embedding: tokens ", name_of(tokens.dtype()),
             ", table ", table.shape());
  check_vector("embedding", "y", y, table, tokens.numel() * table.dim(1));
  on_device(y, [&]<DeviceType D>() { Kernels<D>::embedding(tokens, table, first_row, y); });
}

void embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable, float beta) {
  MCPP_CHECK(tokens.dtype() == DType::I32 && dtable.rank() == 2 && dy.numel() == tokens.numel() * dtable.dim(1) &&
                 dtable.dtype() == wide(dy.dtype()),
             "embedding_backward: dy ", dy.shape(), ", dtable ", dtable.shape());
  on_device(dy, [&]<DeviceType D>() { Kernels<D>::embedding_backward(dy, tokens, first_row, dtable, beta); });
}

void add_positions(Tensor& y, const Tensor& table, i64 first_position) {
  MCPP_CHECK(y.rank() == 3 && table.rank() == 2 && y.dim(2) == table.dim(1) && y.dtype() == table.dtype() &&
                 first_position >= 0 && first_position + y.dim(0) <= table.dim(0),
             "add_positions: ", y.shape(), " from position ", first_position, " of ", table.shape());
  on_device(y, [&]<DeviceType D>() { Kernels<D>::add_positions(y, table, first_position); });
}

void add_positions_backward(const Tensor& dy, i64 first_position, Tensor& dtable, float beta) {
  MCPP_CHECK(dy.rank() == 3 && dtable.rank() == 2 && dy.dim(2) == dtable.dim(1) && dtable.dtype() == wide(dy.dtype()) &&
                 first_position >= 0 && first_position + dy.dim(0) <= dtable.dim(0),
             "add_positions_backward: ", dy.shape(), " from position ", first_position, " of ", dtable.shape());
  on_device(dy, [&]<DeviceType D>() { Kernels<D>::add_positions_backward(dy, first_position, dtable, beta); });
}

void cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, Tensor& largest,
                         Tensor& sum_exp, Tensor& target_logit) {
  MCPP_CHECK(logits.rank() == 2 && targets.dtype() == DType::I32 && targets.numel() == logits.dim(0) &&
                 valid_columns <= logits.dim(1),
             "cross_entropy_stats: logits ", logits.shape(), ", targets ", targets.shape());
  check_wide("cross_entropy_stats", "largest", largest, logits, logits.dim(0));
  check_wide("cross_entropy_stats", "sum_exp", sum_exp, logits, logits.dim(0));
  check_wide("cross_entropy_stats", "target_logit", target_logit, logits, logits.dim(0));
  on_device(logits, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_stats(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
  });
}

void cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest, Tensor& sum_exp) {
  check_same("cross_entropy_rescale", "largest", largest, own_largest);
  check_wide("cross_entropy_rescale", "sum_exp", sum_exp, own_largest, own_largest.numel());
  on_device(sum_exp, [&]<DeviceType D>() { Kernels<D>::cross_entropy_rescale(own_largest, largest, sum_exp); });
}

void cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit, const Tensor& targets,
                          Tensor& losses, Tensor& totals) {
  for (const Tensor* t : {&sum_exp, &target_logit, static_cast<const Tensor*>(&losses)}) {
    check_wide("cross_entropy_losses", "a number per row", *t, largest, largest.numel());
  }
  MCPP_CHECK(targets.dtype() == DType::I32 && targets.numel() == largest.numel(), "cross_entropy_losses: targets ",
             targets.shape());
  check_numbers("cross_entropy_losses", "totals", totals, 2);
  on_device(largest, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_losses(largest, sum_exp, target_logit, targets, losses, totals);
  });
}

void cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, const Tensor& lse,
                            double scale) {
  MCPP_CHECK(logits.rank() == 2 && targets.numel() == logits.dim(0), "cross_entropy_gradient: logits ", logits.shape());
  check_wide("cross_entropy_gradient", "lse", lse, logits, logits.dim(0));
  on_device(logits, [&]<DeviceType D>() {
    Kernels<D>::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, scale);
  });
}

void judge_step(const Tensor& totals, const Tensor& squares, const StepRule& rule, Tensor& numbers) {
  check_numbers("judge_step", "totals", totals, 2);
  check_numbers("judge_step", "squares", squares, 1);
  check_numbers("judge_step", "numbers", numbers, StepNumbers::kCount);
  on_device(numbers, [&]<DeviceType D>() { Kernels<D>::judge_step(totals, squares, rule, numbers); });
}

void adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step, Tensor* model) {
  for (const Tensor* t : std::initializer_list<const Tensor*>{&m, &v, &grad}) check_same("adamw", "state", *t, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "adamw: model weights");
  if (step.factor.defined()) check_numbers("adamw", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::adamw(master, m, v, grad, step, model); });
}

void sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step, Tensor* model) {
  for (const Tensor* t : std::initializer_list<const Tensor*>{&momentum, &grad}) check_same("sgd", "state", *t, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "sgd: model weights");
  if (step.factor.defined()) check_numbers("sgd", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::sgd(master, momentum, grad, step, model); });
}

void momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step) {
  check_same("momentum", "gradient", grad, buffer);
  if (step.factor.defined()) check_numbers("momentum", "factor", step.factor, 1);
  on_device(buffer, [&]<DeviceType D>() { Kernels<D>::momentum(buffer, grad, step); });
}

void descend(Tensor& master, const Tensor& direction, const DescentStep& step, Tensor* model) {
  check_same("descend", "direction", direction, master);
  MCPP_CHECK(!model || model->numel() == master.numel(), "descend: model weights");
  if (step.factor.defined()) check_numbers("descend", "factor", step.factor, 1);
  on_device(master, [&]<DeviceType D>() { Kernels<D>::descend(master, direction, step, model); });
}

}  // namespace ops
}  // namespace mcpp
