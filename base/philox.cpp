#include "base/philox.h"

#include <bit>
#include <cmath>
#include <span>

namespace mcpp {
namespace {

double polynomial(std::span<const double> coefficients_high_to_low, double x) {
  double y = 0;
  for (double c : coefficients_high_to_low) y = y * x + c;
  return y;
}

/// Computes ln(x) for normal x > 0, with x = m 2^e, m in [sqrt(1/2), sqrt(2)) and ln(m) = 2 atanh((m - 1) / (m + 1)).
double portable_log(double x) {
  const u64 bits = std::bit_cast<u64>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (mantissa > 1.4142135623730951) mantissa *= 0.5, ++exponent;
  const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;
  double series = 0;
  for (int k = 25; k >= 1; k -= 2) series = series * t2 + 1.0 / k;
  return 2 * t * series + exponent * 0.6931471805599453094;
}

}  // namespace

double normal_quantile(double p) {
  static constexpr double kA[]{2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                               45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                               133.14166789178437745, 3.387132872796366608};
  static constexpr double kB[]{
      5226.495278852545925,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
      5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  static constexpr double kC[]{7.7454501427834140764e-4, .0227238449892691845833, .24178072517745061177,
                               1.27045825245236838258,   3.64784832476320460504,  5.7694972214606914055,
                               4.6303378461565452959,    1.42343711074968357734};
  static constexpr double kD[]{
      1.05075007164441684324e-9, 5.475938084995344946e-4, .0151986665636164571966, .14810397642748007459,
      .68976733498510000455,     1.6763848301838038494,   2.05319162663775882187,  1.0};
  static constexpr double kE[]{2.01033439929228813265e-7, 2.71155556874348757815e-5, .0012426609473880784386,
                               .026532189526576123093,    .29656057182850489123,     1.7848265399172913358,
                               5.4637849111641143699,     6.6579046435011037772};
  static constexpr double kF[]{
      2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
      .0148753612908506148525,    .13692988092273580531,    .59983220655588793769,    1.0};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kA, r) / polynomial(kB, r);
  }
  const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double x =
      r <= 5 ? polynomial(kC, r - 1.6) / polynomial(kD, r - 1.6) : polynomial(kE, r - 5) / polynomial(kF, r - 5);
  return q < 0 ? -x : x;
}

}  // namespace mcpp
