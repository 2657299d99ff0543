#include "comm/reduce.h"

#include <algorithm>
#include <array>

namespace mcpp {
namespace {

/// Elements that are reduced at a time, so that the accumulator stays in the first-level cache.
constexpr i64 kBlock = 2048;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class A>
A sum(A a, A b) {
  if constexpr (std::is_integral_v<A>) {  // wraps around, as every backend does
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

/// NaN wins.
template <class A>
A maximum(A a, A b) {
  return a < b || b != b ? b : a;
}

template <class T>
void start(const T* part, Accumulator<T>* acc, i64 count) {
  for (i64 i = 0; i < count; ++i) acc[i] = static_cast<Accumulator<T>>(part[i]);
}

template <class T>
void combine(ReduceOp op, const T* part, Accumulator<T>* acc, i64 count) {
  using A = Accumulator<T>;
  if (op == ReduceOp::Sum) {
    for (i64 i = 0; i < count; ++i) acc[i] = sum(acc[i], static_cast<A>(part[i]));
  } else {
    for (i64 i = 0; i < count; ++i) acc[i] = maximum(acc[i], static_cast<A>(part[i]));
  }
}

template <class T>
void finish(const Accumulator<T>* acc, T* out, i64 count) {
  for (i64 i = 0; i < count; ++i) out[i] = static_cast<T>(acc[i]);
}

template <class T>
void reduce_blocks(ReduceOp op, std::span<const void* const> parts, T* out, i64 count) {
  std::array<Accumulator<T>, kBlock> acc;
  for (i64 begin = 0; begin < count; begin += kBlock) {
    const i64 n = std::min(kBlock, count - begin);
    start(static_cast<const T*>(parts[0]) + begin, acc.data(), n);
    for (const void* part : parts.subspan(1)) combine(op, static_cast<const T*>(part) + begin, acc.data(), n);
    finish(acc.data(), out + begin, n);
  }
}

}  // namespace

void reduce(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, i64 count) {
  on_type(dtype, [&]<class T>() { reduce_blocks(op, parts, static_cast<T*>(out), count); });
}

void start_reduction(DType dtype, const void* part, void* acc, i64 count) {
  on_type(dtype, [&]<class T>() { start(static_cast<const T*>(part), static_cast<Accumulator<T>*>(acc), count); });
}

void continue_reduction(ReduceOp op, DType dtype, const void* part, void* acc, i64 count) {
  on_type(dtype,
          [&]<class T>() { combine(op, static_cast<const T*>(part), static_cast<Accumulator<T>*>(acc), count); });
}

void finish_reduction(DType dtype, const void* acc, void* out, i64 count) {
  on_type(dtype, [&]<class T>() { finish(static_cast<const Accumulator<T>*>(acc), static_cast<T*>(out), count); });
}

}  // namespace mcpp
