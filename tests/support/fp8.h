// Reference fp8 values and rounding, written from the definition of the formats only (Micikevicius et al., "FP8 Formats
// for Deep Learning", 2022): a table of all codes, and a search for the nearest value.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/ops/low_precision/fp8.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

/// Returns the value of a code.
inline double fp8_value(Fp8Format format, int code) {
  const int fraction_bits = format == Fp8Format::E4M3 ? 3 : 2, bias = format == Fp8Format::E4M3 ? 7 : 15;
  const int exponent_bits = 7 - fraction_bits;
  const int exponent = (code & 0x7F) >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
  const int all_ones = (1 << exponent_bits) - 1;
  const double sign = code & 0x80 ? -1 : 1;
  if (format == Fp8Format::E4M3 && (code & 0x7F) == 0x7F) return std::nan("");
  if (format == Fp8Format::E5M2 && exponent == all_ones)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  const double unit = 1 << fraction_bits;
  if (exponent == 0) return sign * std::ldexp(fraction / unit, 1 - bias);
  return sign * std::ldexp(1 + fraction / unit, exponent - bias);
}

/// Returns the finite non-negative values in increasing order, which is also the order of their codes.
inline std::vector<double> fp8_values(Fp8Format format) {
  std::vector<double> values;
  for (int code = 0; code < 0x80 && std::isfinite(fp8_value(format, code)); ++code)
    values.push_back(fp8_value(format, code));
  return values;
}

/// Returns the nearest value, with ties to even codes, saturating at the largest value. Returns NaN if x is not finite.
inline double nearest_fp8(Fp8Format format, double x) {
  if (!std::isfinite(x)) return std::nan("");
  static const std::vector<double> tables[2]{fp8_values(Fp8Format::E4M3), fp8_values(Fp8Format::E5M2)};
  const std::vector<double>& all = tables[static_cast<std::size_t>(format)];
  const double magnitude = std::abs(x);
  const auto above = static_cast<std::size_t>(std::ranges::lower_bound(all, magnitude) - all.begin());
  if (above == all.size()) return std::copysign(all.back(), x);
  if (above == 0) return std::copysign(0.0, x);
  const double up = all[above] - magnitude, down = magnitude - all[above - 1];
  const bool goes_up = up < down || (up == down && above % 2 == 0);
  return std::copysign(goes_up ? all[above] : all[above - 1], x);
}

inline double largest_magnitude(const Numbers& x) {
  double largest = 0;
  for (const double number : x) largest = std::max(largest, std::abs(number));
  return largest;
}

/// Returns x rounded to fp8, scaled by the largest power of two that keeps a tensor with this maximum in range.
inline Numbers in_fp8(const Numbers& x, Fp8Format format, double amax) {
  const double largest = fp8_values(format).back();
  double scale = std::ldexp(1.0, 100);
  while (amax * scale > largest) scale /= 2;
  Numbers y(x.size());
  std::ranges::transform(x, y.begin(), [&](double number) { return nearest_fp8(format, number * scale) / scale; });
  return y;
}

/// Returns x [rows, columns] with each block rounded to fp8. The last blocks may be smaller.
inline Numbers in_fp8_blocks(const Numbers& x, i64 columns, Fp8Format format, const BlockShape& block) {
  Numbers y(x.size());
  const i64 rows = static_cast<i64>(x.size()) / columns;
  for (i64 row = 0; row < rows; row += block.rows) {
    for (i64 column = 0; column < columns; column += block.columns) {
      std::vector<std::size_t> places;
      Numbers part;
      for (i64 i = row; i < std::min(rows, row + block.rows); ++i)
        for (i64 j = column; j < std::min(columns, column + block.columns); ++j)
          places.push_back(static_cast<std::size_t>(i * columns + j)), part.push_back(x[places.back()]);
      part = in_fp8(part, format, largest_magnitude(part));
      for (std::size_t i = 0; i < places.size(); ++i) y[places[i]] = part[i];
    }
  }
  return y;
}

}  // namespace mcpp::test
