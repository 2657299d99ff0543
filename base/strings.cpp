#include "base/strings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace mcpp {
namespace {

std::string format_number(const char* format, double value, const char* unit) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, value, unit);
  return text.data();
}

/// Computes the number of insertions, deletions, substitutions and swaps of neighbors that turn a into b (optimal
/// string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1), previous(b.size() + 1), before_previous(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_previous.swap(previous);
    previous = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before_previous[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin));
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) text += separator;
    text += part;
  }
  return text;
}

std::string human_bytes(double bytes) {
  static constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
  return format_number(unit == 0 ? "%.0f %s" : "%.2f %s", bytes, kUnits[unit]);
}

std::string human_count(double count) {
  static constexpr std::array kUnits{"", "K", "M", "B", "T"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000 && unit + 1 < kUnits.size()) count /= 1000, ++unit;
  return format_number(unit == 0 ? "%.0f%s" : "%.1f%s", count, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (!(seconds < 1e9)) return "?";
  if (seconds < 60) return format_number("%.1f%s", seconds, "s");
  const i64 total = std::llround(seconds);
  std::array<char, 48> text;
  if (total < 3600) {
    std::snprintf(text.data(), text.size(), "%dm%02ds", int(total / 60), int(total % 60));
  } else {
    std::snprintf(text.data(), text.size(), "%dh%02dm", int(total / 3600), int(total / 60 % 60));
  }
  return text.data();
}

std::string human_step_seconds(double seconds) {
  return seconds < 10 ? format_number("%.1f%s", 1e3 * seconds, " ms") : human_seconds(seconds);
}

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(word.size() / 2, 2);
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best_distance = distance, best = candidate;
  }
  return best;
}

std::vector<i64> nearest_divisors(i64 n, i64 value) {
  i64 below = value, above = value;
  while (below > 1 && n % below != 0) --below;
  while (above <= n && n % above != 0) ++above;
  std::vector<i64> divisors;
  if (below >= 1 && n % below == 0) divisors.push_back(below);
  if (above <= n && above != below) divisors.push_back(above);
  return divisors;
}

std::vector<i64> nearest_multiples(i64 step, i64 value) {
  const i64 below = value / step * step;
  if (below == value) return {value};
  if (below == 0) return {step};
  return {below, below + step};
}

std::string join_alternatives(const std::vector<i64>& values) {
  std::string text;
  for (const i64 value : values) text += str(text.empty() ? "" : " or ", value);
  return text;
}

}  // namespace mcpp
