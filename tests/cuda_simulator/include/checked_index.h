// Thread and block indices of simulated kernels: unsigned as CUDA's, but results that do not fit in 32 bits are
// reported instead of wrapping around. Operations with 64-bit operands are computed in 64 bits, as the language does.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace mcpp::cuda_simulator {

/// Reports an index that does not fit in its type, with the value it should have.
void report_index_overflow(const char* type, std::int64_t value);

class CheckedIndex {
 public:
  // NOLINTBEGIN(google-explicit-constructor): converts as CUDA's indices do.
  constexpr CheckedIndex(unsigned value) : value_(value) {}
  constexpr operator unsigned() const { return value_; }  ///< for subscripts, which ignore templates
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr operator T() const {
    if constexpr (std::is_same_v<T, int>)
      if (value_ > std::uint32_t{std::numeric_limits<int>::max()}) report_index_overflow("int", value_);
    return static_cast<T>(value_);
  }
  // NOLINTEND
  constexpr unsigned value() const { return value_; }

 private:
  unsigned value_;
};

struct CheckedIndices {
  CheckedIndex x, y, z;
};
inline CheckedIndices checked_indices(const uint3& i) {
  return {i.x, i.y, i.z};
}
inline CheckedIndices checked_indices(const dim3& i) {
  return {i.x, i.y, i.z};
}

template <class T>
constexpr auto index_value(T x) {
  return x;
}
constexpr unsigned index_value(CheckedIndex x) {
  return x.value();
}
template <class T>
inline constexpr bool kIsIndexOperand = std::is_arithmetic_v<T> || std::is_same_v<T, CheckedIndex>;
template <class A, class B>
concept IndexOperands = kIsIndexOperand<A> && kIsIndexOperand<B> &&
    (std::is_same_v<A, CheckedIndex> || std::is_same_v<B, CheckedIndex>);

/// Computes f of both operands: in 64 bits, with a check, if the language would compute in unsigned.
template <class F, class A, class B>
constexpr auto index_arithmetic(F f, A a, B b) {
  const auto x = index_value(a);
  const auto y = index_value(b);
  using Result = decltype(f(x, y));
  if constexpr (std::is_same_v<Result, unsigned>) {
    const std::int64_t exact = f(std::int64_t{x}, std::int64_t{y});
    if (exact < 0 || exact > std::numeric_limits<unsigned>::max()) report_index_overflow("unsigned", exact);
    return CheckedIndex(static_cast<unsigned>(exact));
  } else {
    return f(x, y);
  }
}

#define MCPP_INDEX_OPERATOR(op)                                           \
  template <class A, class B>                                             \
  requires IndexOperands<A, B>                                            \
  constexpr auto operator op(A a, B b) {                                  \
    return index_arithmetic([](auto x, auto y) { return x op y; }, a, b); \
  }
MCPP_INDEX_OPERATOR(+)
MCPP_INDEX_OPERATOR(-)
MCPP_INDEX_OPERATOR(*)
MCPP_INDEX_OPERATOR(/)
MCPP_INDEX_OPERATOR(%)
#undef MCPP_INDEX_OPERATOR

template <class A, class B>
requires IndexOperands<A, B>
constexpr auto operator<<(A a, B b) {
  return index_value(index_arithmetic([](auto x, auto y) { return x << y; }, a, b));
}

#define MCPP_INDEX_COMPARISON(op)            \
  template <class A, class B>                \
  requires IndexOperands<A, B>               \
  constexpr bool operator op(A a, B b) {     \
    return index_value(a) op index_value(b); \
  }
MCPP_INDEX_COMPARISON(==)
MCPP_INDEX_COMPARISON(!=)
MCPP_INDEX_COMPARISON(<)
MCPP_INDEX_COMPARISON(>)
MCPP_INDEX_COMPARISON(<=)
MCPP_INDEX_COMPARISON(>=)
#undef MCPP_INDEX_COMPARISON

template <class T>
constexpr T* operator+(T* from, CheckedIndex i) {
  return from + i.value();
}
template <class T>
requires std::is_arithmetic_v<T>
constexpr T& operator+=(T& a, CheckedIndex b) {
  return a = static_cast<T>(a + b);
}

}  // namespace mcpp::cuda_simulator
