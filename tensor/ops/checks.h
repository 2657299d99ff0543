// Argument checks of ops; errors name the op and the argument.
#pragma once
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {

inline void check_shape(const char* op, const char* name, const Tensor& t, const Shape& expected) {
  MCPP_CHECK(t.defined() && t.shape() == expected, op, ": ", name, " has shape ", t.defined() ? t.shape() : Shape{},
             ", not ", expected);
}

inline void check_accumulate_dtype(const char* op, const char* name, const Tensor& t, const Tensor& x, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == accumulate_dtype(x.dtype()), op, ": ", name, " must be ",
             name_of(accumulate_dtype(x.dtype())), " with ", count, " elements");
}

inline void check_same(const char* op, const char* name, const Tensor& t, const Tensor& x) {
  MCPP_CHECK(t.defined() && t.numel() == x.numel() && t.dtype() == x.dtype(), op, ": ", name, " must match the input ",
             x.shape());
}

inline void check_vector(const char* op, const char* name, const Tensor& t, const Tensor& x, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == x.dtype(), op, ": ", name, " must have ", count,
             " elements of ", name_of(x.dtype()));
}

inline void check_fp64(const char* op, const char* name, const Tensor& t, i64 count) {
  MCPP_CHECK(t.defined() && t.numel() == count && t.dtype() == DType::F64, op, ": ", name, " must be ", count,
             " fp64 values");
}

/// Checks the row sums of x if its columns are sharded across ranks. `sums` is undefined if they are not sharded.
inline void check_row_sums(const char* op, const char* name, const Tensor& sums, i64 all_columns, const Tensor& x) {
  if (!sums.defined()) return;
  check_accumulate_dtype(op, name, sums, x, row_count(x));
  MCPP_CHECK(all_columns >= x.dim(-1), op, ": ", x.dim(-1), " columns exceed the total of ", all_columns);
}

inline void check_matmul(const char* op, const Tensor& a, const Tensor& b, const Tensor& c,
                         const ops::MatmulOptions& options) {
  MCPP_CHECK(a.rank() == 2 && b.rank() == 2 && c.rank() == 2, op, ": operands must be matrices, not ", a.shape(), ", ",
             b.shape(), ", ", c.shape());
  const i64 m = a.dim(options.transpose_a ? 1 : 0), k = a.dim(options.transpose_a ? 0 : 1);
  const i64 n = b.dim(options.transpose_b ? 0 : 1);
  MCPP_CHECK(b.dim(options.transpose_b ? 1 : 0) == k && c.dim(0) == m && c.dim(1) == n, op, ": ", a.shape(),
             options.transpose_a ? "^T" : "", " times ", b.shape(), options.transpose_b ? "^T" : "", " does not match ",
             c.shape());
  MCPP_CHECK(is_float(a.dtype()) && a.dtype() == b.dtype() &&
                 (c.dtype() == a.dtype() || c.dtype() == accumulate_dtype(a.dtype())),
             op, ": unsupported dtypes ", name_of(a.dtype()), " times ", name_of(b.dtype()), " to ",
             name_of(c.dtype()));
  MCPP_CHECK(options.beta == 0 || options.beta == 1, op, ": beta must be 0 or 1, not ", options.beta);
}

inline void check_dropout(const char* op, const Dropout& d, i64 row_count) {
  if (d.p == 0) return;
  const i64 batch = static_cast<i64>(d.samples.size());
  MCPP_CHECK(d.p > 0 && d.p < 1 && batch > 0 && row_count % batch == 0, op, ": invalid dropout p ", d.p, ", or ",
             row_count, " rows are not divisible by ", batch, " samples");
  MCPP_CHECK(
      !d.sample_indices.defined() || (d.sample_indices.dtype() == DType::I64 && d.sample_indices.numel() == batch &&
                                      d.sample_indices.device().type() != DeviceType::Cpu),
      op, ": sample indices of dropout must be int64 [", batch, "] on a GPU");
}

}  // namespace mcpp
