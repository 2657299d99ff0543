#include "base/object_store/s3_path.h"

#include <algorithm>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::string_view kScheme = "s3://";

bool is_lower_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool is_bucket_name(std::string_view name) {
  constexpr std::size_t kMinLength = 3, kMaxLength = 63;
  if (name.size() < kMinLength || name.size() > kMaxLength) return false;
  if (!is_lower_or_digit(name.front()) || !is_lower_or_digit(name.back())) return false;
  return std::ranges::all_of(name, [](char c) { return is_lower_or_digit(c) || c == '-' || c == '.'; });
}

}  // namespace

bool is_s3_path(const std::string& text) {
  return text.starts_with(kScheme);
}

S3Path S3Path::parse(const std::string& text) {
  constexpr std::size_t kMaxKeyBytes = 1024;
  check_input(is_s3_path(text), text, ": is not the name of an object; these begin with s3://");
  const std::string_view rest = std::string_view(text).substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  S3Path path{std::string(rest.substr(0, slash)),
              std::string(slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1))};
  check_input(is_bucket_name(path.bucket), text, ": '", path.bucket,
              "' is not the name of a bucket (3 to 63 lower-case letters, digits, '-' and '.'); write "
              "s3://bucket/folder");
  while (path.key.ends_with('/')) path.key.pop_back();
  check_input(path.key.size() <= kMaxKeyBytes, text, ": the key has ", path.key.size(), " bytes; at most ",
              kMaxKeyBytes, " are allowed");
  check_input(!path.key.starts_with('/') && path.key.find("//") == std::string::npos, text,
              ": has an empty folder name; remove a '/'");
  for (const std::string& segment : split(path.key, '/'))
    check_input(segment != "." && segment != "..", text, ": has the folder '", segment,
                "'; an object store has no relative paths, so write the complete one");
  return path;
}

S3Path S3Path::operator/(std::string_view name) const {
  return {bucket, key.empty() ? std::string(name) : key + "/" + std::string(name)};
}

std::string percent_encode(std::string_view text, bool keeps_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF", kPlain = "-._~";
  std::string encoded;
  for (const char c : text) {
    const bool is_alphanumeric = is_lower_or_digit(c) || (c >= 'A' && c <= 'Z');
    if (is_alphanumeric || kPlain.find(c) != std::string_view::npos || (keeps_slashes && c == '/')) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kDigits[byte >> 4];
    encoded += kDigits[byte & 15];
  }
  return encoded;
}

}  // namespace mcpp
