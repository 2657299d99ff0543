// Times in UTC as text.
#pragma once
#include <chrono>
#include <optional>
#include <string>

namespace mcpp {

/// Formats of utc_text(), for strftime. Logs state milliseconds as well: utc_now().
inline constexpr const char* kIsoTime = "%Y-%m-%dT%H:%M:%SZ";     ///< ISO 8601
inline constexpr const char* kCompactIsoTime = "%Y%m%dT%H%M%SZ";  ///< ISO 8601 without separators

/// Returns a time in UTC in a format of strftime.
std::string utc_text(std::chrono::system_clock::time_point time, const char* format);
/// Returns the present time with milliseconds, "2026-01-31T23:59:59.123Z".
std::string utc_now();
/// Returns the seconds since 1970 of a time such as "2026-01-31T23:59:59.123Z", with or without a fraction;
/// std::nullopt if the text has a different form.
std::optional<double> parse_utc(const std::string& text);

}  // namespace mcpp
