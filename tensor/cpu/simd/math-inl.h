// Vectorized exp, logistic function, softplus, tanh and normal distribution in fp32 and fp64. The coefficients of exp
// and of the normal distribution are our Chebyshev fits, computed with 40 digits.
#if defined(MCPP_TENSOR_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_MATH_INL_H_
#undef MCPP_TENSOR_CPU_MATH_INL_H_
#else
#define MCPP_TENSOR_CPU_MATH_INL_H_
#endif

#include <array>

#include "tensor/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float kLowest = -88, kHighest = 89;  // limits of x, where n is -127 and 128
  static constexpr float kRound = 0x1.8p23f + 127;      // adding this constant leaves n + 127 in the low bits
  static constexpr float kLn2High = 0x1.62ep-1f, kLn2Low = 0x1.0bfbe8p-15f;
  static constexpr int kFraction = 23;
  /// Approximates (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, highest power first; the error of exp is 1e-8.
  static constexpr float kPolynomial[]{0.00139262508f, 0.00836323288f, 0.0416665542f, 0.166665767f, 0.5f};
};
template <>
struct ExpConstants<double> {
  static constexpr double kLowest = -709, kHighest = 709.6;
  static constexpr double kRound = 0x1.8p52 + 1023;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  static constexpr int kFraction = 52;
  static constexpr double kPolynomial[]{2.5100472505694996e-8,  2.76202015910315488e-7, 2.75572682769056962e-6,
                                        2.48015210578682052e-5, 1.9841269863171556e-4,  1.38888889173670806e-3,
                                        8.3333333333300382e-3,  4.16666666666238205e-2, .166666666666666675,
                                        .500000000000000103};
};

template <class D, std::size_t N>
HWY_INLINE hn::Vec<D> polynomial(D d, hn::Vec<D> x, const hn::TFromD<D> (&high_to_low)[N]) {
  auto y = hn::Set(d, high_to_low[0]);
  for (std::size_t i = 1; i < N; ++i) y = hn::MulAdd(y, x, hn::Set(d, high_to_low[i]));
  return y;
}

/// Computes exp(x) = 2^n exp(r), x = n ln 2 + r, to about one unit in the last place. 2^n is built from its exponent
/// bits. Results below 2^-126.5 are 0 and those above 2^127.5 infinite (in fp64 2^-1022.5 and 2^1023.5). NaN is
/// preserved.
template <class D>
HWY_INLINE hn::Vec<D> exp_of(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const hn::RebindToSigned<D> integers;
  // This argument order propagates NaN on all processors.
  const auto clamped = hn::Min(hn::Set(d, C::kHighest), hn::Max(hn::Set(d, C::kLowest), x));
  const auto shifted = hn::MulAdd(clamped, hn::Set(d, static_cast<T>(1.4426950408889634)), hn::Set(d, C::kRound));
  const auto n = hn::Sub(shifted, hn::Set(d, C::kRound));
  const auto r = hn::NegMulAdd(n, hn::Set(d, C::kLn2Low), hn::NegMulAdd(n, hn::Set(d, C::kLn2High), clamped));
  const auto q = polynomial(d, r, C::kPolynomial);
  const auto power = hn::Add(hn::MulAdd(hn::Mul(r, r), q, r), hn::Set(d, T{1}));
  return hn::Mul(power, hn::BitCast(d, hn::ShiftLeft<C::kFraction>(hn::BitCast(integers, shifted))));
}

/// Computes 1 / (1 + exp(-x)).
template <class D>
HWY_INLINE hn::Vec<D> logistic(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, hn::TFromD<D>{1});
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

/// Returns 1 / (2 n - 1), ..., 1 / 3, 1.
template <class T, std::size_t n>
constexpr std::array<T, n> inverse_odd_numbers() {
  std::array<T, n> values{};
  for (std::size_t i = 0; i < n; ++i) values[n - 1 - i] = T{1} / static_cast<T>(2 * i + 1);
  return values;
}

/// Computes log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)) to a few units in the last place, where log(1 + e) is 2
/// artanh(e / (2 + e)). NaN is preserved.
template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  // Series of artanh(z) / z in z^2 <= 1 / 9, highest power first. The first omitted term is below 3e-9 (2e-17).
  constexpr std::size_t kTerms = sizeof(T) == 4 ? 8 : 16;
  static constexpr auto kSeries = inverse_odd_numbers<T, kTerms>();
  const auto e = exp_of(d, hn::Neg(hn::Abs(x)));
  const auto z = hn::Div(e, hn::Add(hn::Set(d, T{2}), e));
  auto sum = hn::Set(d, kSeries[0]);
  const auto square = hn::Mul(z, z);
  for (std::size_t i = 1; i < kTerms; ++i) sum = hn::MulAdd(sum, square, hn::Set(d, kSeries[i]));
  const auto positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  return hn::MulAdd(hn::Add(z, z), sum, positive);
}

/// Computes tanh to a few units in the last place from exp(-2 |x|), or near 0 from its series to avoid cancellation.
/// NaN is preserved.
template <class D>
HWY_INLINE hn::Vec<D> tanh_of(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  // Series of tanh(x) / x in x^2, highest power first. The truncation error is below 1e-20 where it is used.
  static constexpr T kSeries[]{static_cast<T>(5.9002744094558597e-4),
                               static_cast<T>(-1.4558343870513183e-3),
                               static_cast<T>(3.5921280365724810e-3),
                               static_cast<T>(-8.8632355299021965e-3),
                               static_cast<T>(2.1869488536155203e-2),
                               static_cast<T>(-5.3968253968253968e-2),
                               static_cast<T>(1.3333333333333333e-1),
                               static_cast<T>(-3.3333333333333333e-1),
                               static_cast<T>(1)};
  const auto one = hn::Set(d, T{1}), size = hn::Abs(x);
  const auto e = exp_of(d, hn::Mul(hn::Set(d, T{-2}), size));
  const auto large = hn::Div(hn::Sub(one, e), hn::Add(one, e));
  const auto small = hn::Mul(size, polynomial(d, hn::Mul(x, x), kSeries));
  return hn::CopySign(hn::IfThenElse(hn::Lt(size, hn::Set(d, static_cast<T>(0.1))), small, large), x);
}

template <class T>
struct NormalConstants;
template <>
struct NormalConstants<float> {
  /// Approximates (1 + 2 z) exp(z^2) erfc(z) in u = (z - 3) / (z + 3), highest power first: error 4e-8 for z >= 0.
  static constexpr float kPolynomial[]{-1.39803301e-4f, 2.29609418e-3f, 2.26196545e-3f, -.0240344844f, .068335908f,
                                       -.119221778f,    .129645314f,    -.0475656504f,  -.135621147f,  1.25300809f};
};
template <>
struct NormalConstants<double> {
  static constexpr double kPolynomial[]{
      -1.12285375487132375e-9, -6.62408814889794894e-9, -5.71223636085109662e-9, 4.1611856538284896e-8,
      8.99675968606605004e-8,  -1.44714065752387468e-7, -6.0608267829572822e-7,  3.61090969742458688e-7,
      3.46655012232745932e-6,  -7.34331953914425625e-7, -2.00984573061929018e-5, 4.95059011160612235e-6,
      1.25098857647937495e-4,  -1.05160066145030534e-4, -7.79832198208349841e-4, 1.88869039803222284e-3,
      2.52939180937967626e-3,  -.0237705149218731045,   .0683080273443116726,    -.119273663415173468,
      .129645158702753007,     -.0475622943534529456,   -.135621106124581121,    1.25300805826972966};
};

/// Standard normal distribution at x.
template <class V>
struct Normal {
  V cdf;      ///< P(X <= x) = erfc(-x / sqrt(2)) / 2
  V density;  ///< exp(-x^2 / 2) / sqrt(2 pi)
};
template <class D>
HWY_INLINE Normal<hn::Vec<D>> normal(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(d, T{1}), two = hn::Set(d, T{2}), three = hn::Set(d, T{3});
  const auto distance = hn::Mul(hn::Abs(x), hn::Set(d, static_cast<T>(0.70710678118654752)));
  // For large |x|, e is 0, and the other factor only has to remain finite.
  const auto limit = hn::Set(d, T{40});
  const auto z = hn::IfThenElse(hn::Gt(distance, limit), limit, distance);
  const auto e = exp_of(d, hn::Mul(hn::Mul(x, x), hn::Set(d, T{-0.5})));
  const auto sum = hn::Add(z, three), line = hn::MulAdd(two, z, one);
  // One division yields both 1 / (z + 3) and 1 / (1 + 2 z).
  const auto inverse = hn::Div(one, hn::Mul(sum, line));
  const auto u = hn::Mul(hn::Mul(hn::Sub(z, three), line), inverse);
  const auto scaled = hn::Mul(polynomial(d, u, NormalConstants<T>::kPolynomial), hn::Mul(sum, inverse));
  const auto tail = hn::Mul(hn::Mul(hn::Set(d, T{0.5}), e), scaled);
  return {hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)),
          hn::Mul(e, hn::Set(d, static_cast<T>(0.39894228040143268)))};
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_MATH_INL_H_
