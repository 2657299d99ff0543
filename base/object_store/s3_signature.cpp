#include "base/object_store/s3_signature.h"

#include <chrono>
#include <span>

#include "base/object_store/s3_path.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "base/utc_time.h"

namespace mcpp {
namespace {

Sha256Digest signing_key(const S3Settings& settings, const std::string& date) {
  const std::string secret = "AWS4" + settings.secret_key;
  Sha256Digest key = hmac_sha256(std::as_bytes(std::span(secret)), date);
  for (const std::string_view part :
       {std::string_view(settings.region), std::string_view("s3"), std::string_view("aws4_request")})
    key = hmac_sha256(key, part);
  return key;
}

}  // namespace

std::string encode_query(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [key, value] : query)
    text += str(text.empty() ? "?" : "&", percent_encode(key, false), "=", percent_encode(value, false));
  return text;
}

std::vector<std::string> sign_s3_request(const S3RequestToSign& request, const S3Settings& settings,
                                         const std::string& time) {
  constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
  std::map<std::string, std::string> headers = request.headers;
  headers["x-amz-content-sha256"] = request.body_hash;
  headers["x-amz-date"] = time;
  if (!settings.session_token.empty()) headers["x-amz-security-token"] = settings.session_token;
  std::vector<std::string> lines;
  for (const auto& [name, value] : headers) lines.push_back(str(name, ": ", value));
  headers["host"] = request.host;

  std::string names, canonical_headers;
  for (const auto& [name, value] : headers) {
    names += (names.empty() ? "" : ";") + name;
    canonical_headers += str(name, ":", value, "\n");
  }
  const std::string query = encode_query(request.query);
  const std::string canonical = str(request.method, "\n", request.path, "\n", query.empty() ? "" : query.substr(1),
                                    "\n", canonical_headers, "\n", names, "\n", request.body_hash);
  constexpr std::size_t kDateDigits = 8;
  const std::string date = time.substr(0, kDateDigits), scope = str(date, "/", settings.region, "/s3/aws4_request");
  const std::string text = str(kAlgorithm, "\n", time, "\n", scope, "\n", to_hex(sha256(canonical)));
  lines.push_back(str("Authorization: ", kAlgorithm, " Credential=", settings.access_key, "/", scope,
                      ",SignedHeaders=", names, ",Signature=", to_hex(hmac_sha256(signing_key(settings, date), text))));
  return lines;
}

std::string s3_time_now() {
  return utc_text(std::chrono::system_clock::now(), kCompactIsoTime);
}

}  // namespace mcpp
