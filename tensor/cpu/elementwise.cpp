#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/elementwise.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/partial_sums-inl.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

template <class From, class To>
void convert(const Tensor& src, Tensor& dst) {
  using Wider = std::conditional_t<std::is_same_v<From, double>, From, To>;
  const LaneTag<Wider> d;
  const From* from = src.data<From>();
  To* to = dst.data<To>();
  parallel_for(cpu(dst), dst.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
    sweep(d, begin, end, [=](i64 i, auto lanes) { store(load(d, from + i, lanes), d, to + i, lanes); });
  });
}

void copy(const Tensor& src, Tensor& dst) {
  if (src.dtype() == dst.dtype()) {
    const auto* from = static_cast<const std::byte*>(src.raw());
    auto* to = static_cast<std::byte*>(dst.raw());
    parallel_for(cpu(dst), dst.bytes(), 4 * kElementsPerChunk,
                 [=](i64 begin, i64 end) { std::memcpy(to + begin, from + begin, end - begin); });
    return;
  }
  on_float(src.dtype(), [&]<class From>() { on_float(dst.dtype(), [&]<class To>() { convert<From, To>(src, dst); }); });
}

void scale(Tensor& x, double factor) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    T* data = x.data<T>();
    const auto factors = static_cast<Lane<T>>(factor);
    parallel_for(cpu(x), x.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        store(hn::Mul(load(d, data + i, lanes), hn::Set(d, factors)), d, data + i, lanes);
      });
    });
  });
}

void soft_cap(Tensor& x, double cap) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    T* data = x.data<T>();
    const auto lane_cap = static_cast<Lane<T>>(cap), inverse = static_cast<Lane<T>>(1 / cap);
    parallel_for(cpu(x), x.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto t = tanh_of(d, hn::Mul(load(d, data + i, lanes), hn::Set(d, inverse)));
        store(hn::Mul(t, hn::Set(d, lane_cap)), d, data + i, lanes);
      });
    });
  });
}

void add_to(const Tensor& x, Tensor& y) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    parallel_for(cpu(y), y.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        store(hn::Add(load(d, to + i, lanes), load(d, from + i, lanes)), d, to + i, lanes);
      });
    });
  });
}

/// Squares in fp64, which avoids overflow and rounding; the loop stays memory-bound.
void add_sum_of_squares(const Tensor& x, Tensor& sum) {
  std::vector<double> chunks(static_cast<std::size_t>(ceil_div(x.numel(), kElementsPerChunk)));
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<double> d;
    const T* data = x.data<T>();
    parallel_for(cpu(x), x.numel(), kElementsPerChunk, [&](i64 begin, i64 end) {
      Sum<LaneTag<double>> squares;
      sweep_slots(d, begin, end, [&](i64 i, auto lanes, int slot) {
        const auto v = load(d, data + i, lanes);
        squares.add_product(v, v, slot);
      });
      chunks[static_cast<std::size_t>(begin / kElementsPerChunk)] = squares.total();
    });
  });
  double total = 0;
  for (double chunk : chunks) total += chunk;
  *sum.data<double>() += total;
}

/// Computes sums[n] over `rows` rows, eight at a time: few passes over `sums` without too many memory streams.
template <class T>
void sum_rows(const T* x, i64 rows, i64 n, Lane<T>* sums) {
  const LaneTag<T> d;
  const auto add = [=](const T* first, i64 count, float beta) {
    sweep(d, 0, n, [=](i64 i, auto lanes) {
      auto sum = previous(d, sums + i, beta, lanes);
      for (i64 r = 0; r < count; ++r) sum = hn::Add(sum, load(d, first + r * n + i, lanes));
      store(sum, d, sums + i, lanes);
    });
  };
  i64 row = 0;
  for (; row + 8 <= rows; row += 8) add(x + row * n, 8, row == 0 ? 0.0f : 1.0f);
  if (row < rows) add(x + row * n, rows - row, row == 0 ? 0.0f : 1.0f);
}

void column_sum(const Tensor& dy, Tensor& db, float beta) {
  on_float(dy.dtype(), [&]<class T>() {
    const i64 n = dy.dim(-1), rows = row_count(dy);
    const PartialSums<Lane<T>> partial(rows, n, db);
    const T* x = dy.data<T>();
    parallel_for(cpu(dy), rows, partial.rows_per_chunk,
                 [&](i64 begin, i64 end) { sum_rows(x + begin * n, end - begin, n, partial.of_row(begin)); });
    partial.add_to(db, 0, beta);
  });
}

void add_bias(Tensor& x, const Tensor& bias) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 n = x.dim(-1), rows = row_count(x);
    T* data = x.data<T>();
    const T* b = bias.data<T>();
    parallel_for(cpu(x), rows, rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        sweep(d, 0, n, [=, row = data + r * n](i64 i, auto lanes) {
          store(hn::Add(load(d, row + i, lanes), load(d, b + i, lanes)), d, row + i, lanes);
        });
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(copy);
HWY_EXPORT(scale);
HWY_EXPORT(soft_cap);
HWY_EXPORT(add_to);
HWY_EXPORT(add_sum_of_squares);
HWY_EXPORT(column_sum);
HWY_EXPORT(add_bias);

template <>
void Kernels<DeviceType::Cpu>::fill_zero(Tensor& x) {
  auto* data = static_cast<std::byte*>(x.raw());
  parallel_for(cpu(x), x.bytes(), 4 * kElementsPerChunk,
               [=](i64 begin, i64 end) { std::memset(data + begin, 0, end - begin); });
}

template <>
void Kernels<DeviceType::Cpu>::fill(Tensor& x, double value) {
  on_float(x.dtype(), [&]<class T>() {
    T* data = x.data<T>();
    parallel_for(cpu(x), x.numel(), kElementsPerChunk, [data, element = from_double<T>(value)](i64 begin, i64 end) {
      std::fill(data + begin, data + end, element);
    });
  });
}

template <>
void Kernels<DeviceType::Cpu>::copy(const Tensor& src, Tensor& dst) {
  HWY_DYNAMIC_DISPATCH(copy)(src, dst);
}

template <>
void Kernels<DeviceType::Cpu>::scale(Tensor& x, double factor) {
  HWY_DYNAMIC_DISPATCH(scale)(x, factor);
}

template <>
void Kernels<DeviceType::Cpu>::soft_cap(Tensor& x, double cap) {
  HWY_DYNAMIC_DISPATCH(soft_cap)(x, cap);
}

template <>
void Kernels<DeviceType::Cpu>::add_to(const Tensor& x, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(add_to)(x, y);
}

template <>
void Kernels<DeviceType::Cpu>::add_sum_of_squares(const Tensor& x, Tensor& sum) {
  HWY_DYNAMIC_DISPATCH(add_sum_of_squares)(x, sum);
}

template <>
void Kernels<DeviceType::Cpu>::normalize(Tensor& x, const Tensor& squares, double eps) {
  scale(x, 1 / (std::sqrt(*squares.data<double>()) + eps));
}

template <>
void Kernels<DeviceType::Cpu>::column_sum(const Tensor& dy, Tensor& db, float beta) {
  HWY_DYNAMIC_DISPATCH(column_sum)(dy, db, beta);
}

template <>
void Kernels<DeviceType::Cpu>::add_bias(Tensor& x, const Tensor& bias) {
  HWY_DYNAMIC_DISPATCH(add_bias)(x, bias);
}

}  // namespace mcpp
#endif  // HWY_ONCE
