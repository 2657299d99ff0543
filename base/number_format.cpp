#include "base/number_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace mcpp {
namespace {

template <class... Format>
std::string to_text(double value, Format... format) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 512> text;  // the largest double has 309 digits before its point
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, format...);
  return std::string(text.data(), end);
}

}  // namespace

std::string fixed(double value, int digits) {
  return to_text(value, std::chars_format::fixed, digits);
}

std::string significant(double value, int digits) {
  const std::string rounded = to_text(value, std::chars_format::scientific, digits - 1);
  double number = 0;
  std::from_chars(rounded.data(), rounded.data() + rounded.size(), number);
  constexpr double kMin = 1e-5, kMax = 1e15;
  if (!(std::abs(number) >= kMin && std::abs(number) < kMax)) return to_text(number);
  const int before_point = 1 + static_cast<int>(std::floor(std::log10(std::abs(number))));
  return fixed(number, std::max(0, digits - before_point));
}

std::string scientific(double value, int digits) {
  std::string text = to_text(value, std::chars_format::scientific, digits);
  std::replace(text.begin(), text.end(), 'e', 'E');
  return text;
}

std::string shortest(double value) {
  std::string text = to_text(value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string pad_left(std::string_view text, std::size_t width) {
  return std::string(width > text.size() ? width - text.size() : 0, ' ').append(text);
}

std::string pad_right(std::string_view text, std::size_t width) {
  return std::string(text).append(width > text.size() ? width - text.size() : 0, ' ');
}

}  // namespace mcpp
