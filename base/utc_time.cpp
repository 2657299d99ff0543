#include "base/utc_time.h"

#include <array>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/strings.h"

namespace mcpp {

std::string utc_text(std::chrono::system_clock::time_point time, const char* format) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(time));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), format, &parts);
  return text.data();
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const auto fraction = now - std::chrono::floor<std::chrono::seconds>(now);
  const std::string digits = std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(fraction).count());
  return str(utc_text(now, "%Y-%m-%dT%H:%M:%S."), std::string(3 - digits.size(), '0'), digits, "Z");
}

std::optional<double> parse_utc(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  char* end = nullptr;
  const double fraction = *rest == '.' ? std::strtod(rest, &end) : 0;
  const std::string_view zone = end != nullptr ? end : rest;
  if (zone != "Z") return std::nullopt;
  return static_cast<double>(::timegm(&parts)) + fraction;
}

}  // namespace mcpp
