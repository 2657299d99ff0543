#include "tensor/ops/groups.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

using Cpu = Kernels<DeviceType::Cpu>;

/// Matrix g of `all`.
Tensor matrix_of(const Tensor& all, i64 g) {
  return all.slice(g, g + 1).view({all.dim(1), all.dim(2)});
}

}  // namespace

template <>
void Cpu::grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y,
                         bool transpose_weights) {
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    Tensor part = y.slice(first, first + count);
    Cpu::matmul(x.slice(first, first + count), matrix_of(weights, g), part, {.transpose_b = transpose_weights});
  });
}

template <>
void Cpu::grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw,
                                  float beta) {
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    Tensor gradient = matrix_of(dw, g);
    Cpu::matmul(dy.slice(first, first + count), x.slice(first, first + count), gradient,
                {.transpose_a = true, .beta = beta});
  });
}

}  // namespace mcpp
