// Grouped products. A row's result must not depend on the size of its group, so groups do not use the path of single
// products, which is chosen by size.
#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/groups.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace kernel {
namespace {

/// One product per group.
template <class T, class C>
using Products = std::vector<Product<T, C>>;

/// Computes the products one after another, each with all threads.
template <class T, class C, class Gemm>
void run_sequentially(CpuDevice& device, const Products<T, C>& products, Gemm&& gemm) {
  for (const Product<T, C>& x : products)
    if (x.size.m > 0) gemm(device, x.size, x.a, x.b, x.beta, x.c);
}

template <class T, class C>
void multiply(CpuDevice& device, const Products<T, C>& products) {
  if constexpr (std::is_same_v<T, double>) {
    return run_sequentially(device, products, gemm_f64);
  } else {
    if constexpr (std::is_same_v<T, BFloat16>) {
      const Bf16Path path = device.gemm_cache().choose_bf16_path();
      if (path == Bf16Path::Amx) return run_sequentially(device, products, gemm_amx<C>);  // its sums are ordered, too
      if (path == Bf16Path::Dots) return gemm_dot<C>(device, products);
    }
    gemm_ordered<T, C>(device, products);
  }
}

template <class T, class C>
void grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y, bool transpose) {
  const i64 n = y.dim(1), k = x.dim(1);
  if (k == 0) return void(std::fill_n(y.data<C>(), y.numel(), C()));
  Products<T, C> products;
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    products.push_back({.size = {count, n, k},
                        .a = {x.data<T>() + first * k, k},
                        .b = {weights.data<T>() + g * n * k, transpose ? k : n, transpose},
                        .c = y.data<C>() + first * n,
                        .ldc = n});
  });
  multiply(cpu(y), products);
}

template <class T, class C>
void grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw, float beta) {
  const i64 n = dy.dim(1), k = x.dim(1);
  Products<T, C> products;
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    C* c = dw.data<C>() + g * n * k;
    if (count > 0) {
      products.push_back({.size = {n, k, count},
                          .a = {dy.data<T>() + first * n, n, true},
                          .b = {x.data<T>() + first * k, k},
                          .c = c,
                          .ldc = k,
                          .beta = beta});
    } else if (beta == 0) {
      std::fill_n(c, n * k, C());
    }
  });
  multiply(cpu(dw), products);
}

/// Calls f.template operator()<T, C>() with the types of factors and products.
template <class F>
void on_types(DType in, DType out, F&& f) {
  on_float(in, [&]<class T>() {
    if (out == in) {
      f.template operator()<T, T>();
    } else if constexpr (kIsLowPrecision<T>) {
      f.template operator()<T, float>();
    }
  });
}

}  // namespace
}  // namespace kernel

template <>
void Kernels<DeviceType::Cpu>::grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows,
                                              Tensor& y, bool transpose_weights) {
  if (y.numel() == 0) return;
  kernel::on_types(x.dtype(), y.dtype(),
                   [&]<class T, class C>() { kernel::grouped_matmul<T, C>(x, weights, rows, y, transpose_weights); });
}

template <>
void Kernels<DeviceType::Cpu>::grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                                                       Tensor& dw, float beta) {
  if (dw.numel() == 0) return;
  kernel::on_types(dy.dtype(), dw.dtype(),
                   [&]<class T, class C>() { kernel::grouped_weight_gradient<T, C>(dy, x, rows, dw, beta); });
}

}  // namespace mcpp
