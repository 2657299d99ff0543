#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

using Cpu = Kernels<DeviceType::Cpu>;

/// Matrix g of `all`.
Tensor matrix_of(const Tensor& all, i64 g) {
  return all.slice(g, g + 1).view({all.dim(1), all.dim(2)});
}

/// Calls f(g, first row, end) for every group.
template <class F>
void for_each_group(std::span<const i64> rows, F&& f) {
  i64 g = 0, first = 0;
  for (const i64 count : rows) {
    f(g++, first, first + count);
    first += count;
  }
}

}  // namespace

template <>
void Cpu::grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y,
                         bool transpose_weights) {
  for_each_group(rows, [&](i64 g, i64 begin, i64 end) {
    Tensor part = y.slice(begin, end);
    Cpu::matmul(x.slice(begin, end), matrix_of(weights, g), part, {.transpose_b = transpose_weights});
  });
}

template <>
void Cpu::grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw,
                                  float beta) {
  for_each_group(rows, [&](i64 g, i64 begin, i64 end) {
    Tensor gradient = matrix_of(dw, g);
    Cpu::matmul(dy.slice(begin, end), x.slice(begin, end), gradient, {.transpose_a = true, .beta = beta});
  });
}

}  // namespace mcpp
