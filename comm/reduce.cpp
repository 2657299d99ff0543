#include "comm/reduce.h"

#include <algorithm>
#include <array>

namespace mcpp {
namespace {

/// Elements reduced at a time, so that the accumulator stays in the L1 cache.
constexpr i64 kBlock = 2048;

template <class T>
using Accumulator = std::conditional_t<kIsLowPrecision<T>, float, T>;

template <class A>
A sum(A a, A b) {
  if constexpr (std::is_integral_v<A>) {  // wraps around, as in every backend
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

/// Propagates NaN.
template <class A>
A maximum(A a, A b) {
  return a < b || b != b ? b : a;
}

/// out[i] = in[i], converted. Here and below, `in` and `out` are identical or disjoint, so loops have no carried
/// dependency.
template <class From, class To>
void convert(const From* in, To* out, i64 count) {
#pragma GCC ivdep
  for (i64 i = 0; i < count; ++i) out[i] = static_cast<To>(in[i]);
}

template <class A, class X, class Y, class Out, class F>
void zip(const X* x, const Y* y, Out* out, i64 count, const F& f) {
#pragma GCC ivdep
  for (i64 i = 0; i < count; ++i) out[i] = static_cast<Out>(f(static_cast<A>(x[i]), static_cast<A>(y[i])));
}

/// out[i] = x[i] op y[i], computed in A.
template <class A, class X, class Y, class Out>
void combine(ReduceOp op, const X* x, const Y* y, Out* out, i64 count) {
  if (op == ReduceOp::Sum)
    zip<A>(x, y, out, count, [](A a, A b) { return sum(a, b); });
  else
    zip<A>(x, y, out, count, [](A a, A b) { return maximum(a, b); });
}

template <class T>
void reduce_blocks(ReduceOp op, std::span<const void* const> parts, T* out, i64 count) {
  using A = Accumulator<T>;
  const auto part = [&](std::size_t r) { return static_cast<const T*>(parts[r]); };
  if (parts.size() == 1) return convert(part(0), out, count);
  if (parts.size() == 2) return combine<A>(op, part(0), part(1), out, count);
  std::array<A, kBlock> acc;
  for (i64 begin = 0; begin < count; begin += kBlock) {
    const i64 n = std::min(kBlock, count - begin);
    combine<A>(op, part(0) + begin, part(1) + begin, acc.data(), n);
    for (std::size_t r = 2; r + 1 < parts.size(); ++r) combine<A>(op, acc.data(), part(r) + begin, acc.data(), n);
    combine<A>(op, acc.data(), part(parts.size() - 1) + begin, out + begin, n);
  }
}

}  // namespace

void reduce(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, i64 count) {
  on_type(dtype, [&]<class T>() { reduce_blocks(op, parts, static_cast<T*>(out), count); });
}

void start_reduction(DType dtype, const void* part, void* acc, i64 count) {
  on_type(dtype, [&]<class T>() { convert(static_cast<const T*>(part), static_cast<Accumulator<T>*>(acc), count); });
}

void continue_reduction(ReduceOp op, DType dtype, const void* part, void* acc, i64 count) {
  on_type(dtype, [&]<class T>() {
    auto* sums = static_cast<Accumulator<T>*>(acc);
    combine<Accumulator<T>>(op, sums, static_cast<const T*>(part), sums, count);
  });
}

void finish_reduction(DType dtype, const void* acc, void* out, i64 count) {
  on_type(dtype, [&]<class T>() { convert(static_cast<const Accumulator<T>*>(acc), static_cast<T*>(out), count); });
}

}  // namespace mcpp
