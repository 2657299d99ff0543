// Builders of OpRecord, for the sources of ops, which pass them to on_device() as its second argument.
#pragma once
#include <initializer_list>

#include "tensor/op_trace.h"
#include "tensor/ops/ops.h"

namespace mcpp {

inline OpRecord element_record(OpKind kind, i64 elements, bool is_backward = false) {
  OpRecord record;
  record.kind = kind, record.elements = static_cast<double>(elements), record.is_backward = is_backward;
  return record;
}

/// Returns the record of an op that reads or writes each of these tensors once. A tensor that is read and written is
/// listed twice.
inline OpRecord memory_record(std::initializer_list<const Tensor*> tensors, OpKind kind = OpKind::Memory) {
  OpRecord record;
  record.kind = kind;
  for (const Tensor* t : tensors) record.bytes += static_cast<double>(t->bytes());
  return record;
}

inline bool is_main_grad(const Tensor& t) {
  return t.memory_class() == MemoryClass::Grads;
}

/// Returns the record of a GEMM. `b` is the operand that may be a weight, `c` the result.
inline OpRecord matmul_record(const MatmulShape& shape, const Tensor& a, const Tensor& b, const Tensor& c) {
  OpRecord record = memory_record({&a, &b, &c}, OpKind::Matmul);
  record.dtype = a.dtype();
  record.matmul = shape;
  record.flops = shape.flops();
  record.is_weight_gradient = is_main_grad(c);
  record.weight_data = record.is_weight_gradient ? c.raw() : b.raw();
  return record;
}
inline OpRecord matmul_record(const Tensor& a, const Tensor& b, const Tensor& c, const ops::MatmulOptions& options) {
  return matmul_record({.m = c.dim(0), .n = c.dim(1), .k = a.dim(options.transpose_a ? 0 : 1)}, a, b, c);
}

/// Returns the record of core attention or of its gradient.
OpRecord attention_record(const QkvHeads& x, const AttentionOptions& options, bool is_backward);

}  // namespace mcpp
