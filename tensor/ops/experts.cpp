// Ops of expert layers: routers, row permutations, grouped GEMMs.
#include <algorithm>

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/kernels.h"
#include "tensor/ops/op_records.h"

namespace mcpp::ops {
namespace {

void check_logits(const char* op, const Tensor& logits) {
  MCPP_CHECK(logits.rank() == 2 && logits.dtype() == accumulate_dtype(logits.dtype()) && logits.dim(1) > 0, op,
             ": logits must be fp32 or fp64 [T, E], not ", name_of(logits.dtype()), " ", logits.shape());
}

void check_rule(const char* op, const RoutingRule& rule, i64 experts) {
  MCPP_CHECK(rule.topk > 0 && rule.topk <= experts, op, ": cannot select ", rule.topk, " of ", experts, " experts");
  MCPP_CHECK(rule.groups == 0 || (rule.groups > 0 && experts % rule.groups == 0 && rule.group_topk > 0 &&
                                  rule.group_topk <= rule.groups && rule.topk >= rule.group_topk &&
                                  rule.topk <= experts / rule.groups * rule.group_topk && rule.group_score_topk >= 0 &&
                                  rule.group_score_topk <= experts / rule.groups),
             op, ": cannot select ", rule.topk, " of ", experts, " experts from ", rule.group_topk, " of ", rule.groups,
             " groups");
}

/// Checks an int32 tensor with one element per token and choice.
void check_choices(const char* op, const char* name, const Tensor& t, const Shape& expected) {
  check_shape(op, name, t, expected);
  MCPP_CHECK(t.dtype() == DType::I32, op, ": ", name, " must be int32, not ", name_of(t.dtype()));
}

void check_weights(const char* op, const Tensor& weights, const Tensor& logits, const Tensor& experts,
                   const RoutingRule& rule) {
  check_logits(op, logits);
  check_rule(op, rule, logits.dim(1));
  check_choices(op, "experts", experts, {logits.dim(0), rule.topk});
  check_vector(op, "weights", weights, logits, experts.numel());
}

/// Checks an fp64 table [b, E].
void check_table(const char* op, const char* name, const Tensor& table, const Tensor& logits) {
  check_logits(op, logits);
  MCPP_CHECK(table.defined() && table.rank() == 2 && table.dim(0) > 0 && table.dim(1) == logits.dim(1) &&
                 table.dtype() == DType::F64,
             op, ": ", name, " must be fp64 [b, ", logits.dim(1), "]");
}

void check_slots(const char* op, const Tensor& x, const Tensor& slots, const Tensor* weights, const Tensor& y) {
  MCPP_CHECK(slots.rank() == 2 && x.rank() == 2 && is_float(x.dtype()), op, ": x ", x.shape(), " and slots ",
             slots.shape(), " must be matrices");
  check_choices(op, "slots", slots, slots.shape());
  check_vector(op, "y", y, x, slots.dim(0) * x.dim(1));
  if (weights) check_accumulate_dtype(op, "weights", *weights, x, slots.numel());
}

/// Checks grouped rows of `a` and `b`, with one matrix of `each` per group.
void check_groups(const char* op, const Tensor& a, const Tensor& b, std::span<const i64> rows, const Tensor& each) {
  MCPP_CHECK(a.rank() == 2 && b.rank() == 2 && each.rank() == 3 && a.dim(0) == b.dim(0), op, ": rows ", a.shape(),
             " and ", b.shape(), " and matrices ", each.shape(), " do not match");
  MCPP_CHECK(each.dim(0) == static_cast<i64>(rows.size()), op, ": ", rows.size(), " groups of rows do not match ",
             each.dim(0), " matrices");
  i64 sum = 0;
  for (const i64 count : rows) {
    MCPP_CHECK(count >= 0, op, ": a group has a negative number of rows, ", count);
    sum += count;
  }
  MCPP_CHECK(sum == a.dim(0), op, ": the groups have ", sum, " rows in total, not ", a.dim(0));
}

void check_gemm(const char* op, DType a, DType b, DType c) {
  MCPP_CHECK(is_float(a) && a == b && (c == a || c == accumulate_dtype(a)), op, ": unsupported dtypes ", name_of(a),
             " times ", name_of(b), " to ", name_of(c));
}

/// Returns the mean number of rows of a group, at least 1.
i64 rows_per_group(const Tensor& x, std::span<const i64> rows) {
  return std::max<i64>(1, (x.dim(0) + std::ssize(rows) / 2) / std::ssize(rows));
}

}  // namespace

void choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule, Tensor& experts) {
  constexpr auto kOp = "choose_experts";
  check_logits(kOp, logits);
  check_rule(kOp, rule, logits.dim(1));
  check_choices(kOp, "experts", experts, {logits.dim(0), rule.topk});
  MCPP_CHECK(!bias || (bias->numel() == logits.dim(1) && bias->dtype() == DType::F32), kOp,
             ": the bias must be fp32 with ", logits.dim(1), " elements");
  on_device(logits, [&]<DeviceType D>() { Kernels<D>::choose_experts(logits, bias, rule, experts); });
}

void routing_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule, Tensor& weights) {
  check_weights("routing_weights", weights, logits, experts, rule);
  on_device(logits, [&]<DeviceType D>() { Kernels<D>::routing_weights(logits, experts, rule, weights); });
}

void routing_weights_backward(const Tensor& d_weights, const Tensor& logits, const Tensor& experts,
                              const RoutingRule& rule, Tensor& d_logits) {
  check_weights("routing_weights_backward", d_weights, logits, experts, rule);
  check_same("routing_weights_backward", "d_logits", d_logits, logits);
  on_device(logits,
            [&]<DeviceType D>() { Kernels<D>::routing_weights_backward(d_weights, logits, experts, rule, d_logits); });
}

void router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums, Tensor& squares) {
  check_table("router_score_sums", "sums", sums, logits);
  check_fp64("router_score_sums", "squares", squares, 1);
  on_device(logits, [&]<DeviceType D>() { Kernels<D>::router_score_sums(logits, score, sums, squares); });
}

void router_score_sums_backward(const Tensor& logits, RouterScore score, const RouterLoss& loss, Tensor& d_logits) {
  constexpr auto kOp = "router_score_sums_backward";
  check_logits(kOp, logits);
  if (loss.factors.defined()) check_table(kOp, "factors", loss.factors, logits);
  if (loss.multiplier.defined()) check_fp64(kOp, "multiplier", loss.multiplier, 1);
  check_same(kOp, "d_logits", d_logits, logits);
  on_device(logits, [&]<DeviceType D>() { Kernels<D>::router_score_sums_backward(logits, score, loss, d_logits); });
}

void gather_rows(const Tensor& x, const Tensor& rows, Tensor& y) {
  MCPP_CHECK(x.rank() == 2 && rows.dtype() == DType::I32, "gather_rows: x must be a matrix, not ", x.shape(),
             ", and rows int32, not ", name_of(rows.dtype()));
  check_vector("gather_rows", "y", y, x, rows.numel() * x.dim(1));
  // An embedding lookup gathers rows in the same way.
  on_device(y, [&]<DeviceType D>() { Kernels<D>::embedding(rows, x, 0, y); });
}

void combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y) {
  check_slots("combine_rows", x, slots, weights, y);
  on_device(
      y,
      [&] {
        return memory_record({&x, &y});
      },
      [&]<DeviceType D>() { Kernels<D>::combine_rows(x, slots, weights, y); });
}

void combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots, const Tensor& weights, Tensor& dx,
                           Tensor& d_weights) {
  check_slots("combine_rows_backward", x, slots, &weights, dy);
  check_same("combine_rows_backward", "dx", dx, x);
  check_same("combine_rows_backward", "d_weights", d_weights, weights);
  on_device(
      dy,
      [&] {
        return memory_record({&dy, &x, &dx});
      },
      [&]<DeviceType D>() { Kernels<D>::combine_rows_backward(dy, x, slots, weights, dx, d_weights); });
}

void grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y,
                    bool transpose_weights) {
  check_groups("grouped_matmul", x, y, rows, weights);
  MCPP_CHECK(weights.dim(transpose_weights ? 2 : 1) == x.dim(1) && weights.dim(transpose_weights ? 1 : 2) == y.dim(1),
             "grouped_matmul: ", x.shape(), " times ", weights.shape(), transpose_weights ? "^T" : "",
             " does not match ", y.shape());
  check_gemm("grouped_matmul", x.dtype(), weights.dtype(), y.dtype());
  on_device(
      y,
      [&] {
        return matmul_record({.m = rows_per_group(x, rows), .n = y.dim(1), .k = x.dim(1), .batch = std::ssize(rows)}, x,
                             weights, y);
      },
      [&]<DeviceType D>() { Kernels<D>::grouped_matmul(x, weights, rows, y, transpose_weights); });
}

void grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw, float beta) {
  check_groups("grouped_weight_gradient", dy, x, rows, dw);
  MCPP_CHECK(dw.dim(1) == dy.dim(1) && dw.dim(2) == x.dim(1), "grouped_weight_gradient: ", dy.shape(), "^T times ",
             x.shape(), " does not match ", dw.shape());
  check_gemm("grouped_weight_gradient", dy.dtype(), x.dtype(), dw.dtype());
  MCPP_CHECK(beta == 0 || beta == 1, "grouped_weight_gradient: beta must be 0 or 1, not ", beta);
  on_device(
      dw,
      [&] {
        return matmul_record({.m = dw.dim(1), .n = dw.dim(2), .k = rows_per_group(x, rows), .batch = std::ssize(rows)},
                             dy, x, dw);
      },
      [&]<DeviceType D>() { Kernels<D>::grouped_weight_gradient(dy, x, rows, dw, beta); });
}

}  // namespace mcpp::ops
