// Text helpers: message building, parsing of numbers, human-readable quantities, nearest names.
#pragma once
#include <charconv>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

template <class T>
void write_part(std::ostream& out, const T& part) {
  out << part;
}
template <class T>
void write_part(std::ostream& out, const std::vector<T>& parts) {
  const char* separator = "[";
  for (const T& part : parts) write_part(out << std::exchange(separator, ", "), part);
  out << (parts.empty() ? "[]" : "]");
}

/// Concatenates the parts as `<<` writes them; vectors as "[a, b]".
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (write_part(out, parts), ...);
  return std::move(out).str();
}

/// Returns `text` without spaces, tabs and carriage returns at its ends.
std::string trimmed(std::string_view text);
/// Returns `text` with ASCII letters in lower case.
std::string to_lower(std::string_view text);

/// Parses `text` as a number. Returns std::nullopt for any other text, including text with surrounding blanks.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);

/// Formats bytes: "1.23 GiB", "512 B".
std::string human_bytes(double bytes);
/// Formats a count: "124.4M", "1.6B", "950".
std::string human_count(double count);
/// Formats a duration: "1h02m", "3m05s", "4.2s".
std::string human_seconds(double seconds);
/// Formats the duration of a step in milliseconds, "3.6 ms"; from ten seconds on like human_seconds().
std::string human_step_seconds(double seconds);

/// Returns the candidate nearest to `word` by edit distance, or "" if none is close enough to be a likely misspelling.
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);

// Nearest valid values to an invalid one, for error messages that suggest a fix.

/// Returns the nearest divisors of n below and above `value`, if they exist; {value} if it is a divisor.
std::vector<i64> nearest_divisors(i64 n, i64 value);
/// Returns the nearest multiples of `step`, at least `step`, below and above `value`; {value} if it is a multiple.
std::vector<i64> nearest_multiples(i64 step, i64 value);
/// Formats alternatives: "4 or 8".
std::string join_alternatives(const std::vector<i64>& values);

}  // namespace mcpp
