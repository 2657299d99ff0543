#include "base/normal_quantile.h"

#include <bit>
#include <cmath>
#include <span>

#include "base/types.h"

namespace mcpp {
namespace {

double polynomial(std::span<const double> coefficients_high_to_low, double x) {
  double y = 0;
  for (double c : coefficients_high_to_low) y = y * x + c;
  return y;
}

double portable_log(double x) {
  const u64 bits = std::bit_cast<u64>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);
  if (mantissa > kSqrt2) mantissa *= 0.5, ++exponent;
  const double t = (mantissa - 1) / (mantissa + 1), t2 = t * t;
  double series = 0;
  for (int k = kAtanhTerms; k >= 1; k -= 2) series = series * t2 + 1.0 / k;
  return 2 * t * series + exponent * kLn2;
}

}  // namespace

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= kCentralQuantile) {
    const double r = kCentralOffset - q * q;
    return q * polynomial(kCentralNumerator, r) / polynomial(kCentralDenominator, r);
  }
  const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double x = r <= kFarTail
                       ? polynomial(kTailNumerator, r - kTailOffset) / polynomial(kTailDenominator, r - kTailOffset)
                       : polynomial(kFarTailNumerator, r - kFarTail) / polynomial(kFarTailDenominator, r - kFarTail);
  return q < 0 ? -x : x;
}

}  // namespace mcpp
