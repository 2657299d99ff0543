#include "base/object_store/s3_client.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/object_store/s3_signature.h"
#include "base/object_store/xml_text.h"
#include "base/sha256.h"
#include "base/utc_time.h"

namespace mcpp {
namespace {

constexpr std::size_t kMaxListingBytes = std::size_t{16} << 20;

/// Returns the code of an error response, such as "NoSuchBucket"; "" if it has none, as responses to HEAD.
std::string error_code(const HttpResponse& response) {
  return first_xml_value(response.body, "Code");
}

/// Returns the reason in a response without anything that may contain credentials, such as the signed text.
std::string reason_of(const HttpResponse& response) {
  if (!response.error.empty()) return response.error;
  const std::string code = error_code(response), message = first_xml_value(response.body, "Message");
  return str("HTTP status ", response.status, code.empty() ? "" : " " + code, message.empty() ? "" : ": " + message);
}

bool is_retryable(const HttpResponse& response) {
  return response.is_retryable() || error_code(response) == "RequestTimeout";
}

/// Returns the seconds since 1970 of the time in a listing.
std::optional<i64> parse_time(const std::string& text) {
  const std::optional<double> seconds = parse_utc(text);
  return seconds ? std::optional(static_cast<i64>(*seconds)) : std::nullopt;
}

std::string advice_for(const HttpResponse& response) {
  const std::string code = error_code(response);
  if (code == "NoSuchBucket") return "; create the bucket, or correct its name";
  if (response.status == 301 || code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect")
    return "; set AWS_REGION to the region of the bucket";
  if (response.status == 403 || response.status == 401 || code == "ExpiredToken" || code == "InvalidToken")
    return "; check the credentials (AWS_ACCESS_KEY_ID or AWS_PROFILE), their permissions and the clock of this host";
  return {};
}

}  // namespace

/// Request and the part that its signature covers.
struct S3Client::Request {
  HttpRequest http;
  S3RequestToSign content;
};

S3Client::S3Client(S3Settings settings) : settings_(std::move(settings)) {}

std::string S3Client::server_name() const {
  return settings_.endpoint.empty() ? str("s3.", settings_.region, ".amazonaws.com") : settings_.endpoint;
}

S3Client::Request S3Client::request(const char* method, const S3Path& path, const Query& query,
                                    std::span<const std::byte> body) const {
  // Buckets with dots do not match the certificate of bucket.s3.<region>.amazonaws.com.
  const bool is_host_style = settings_.endpoint.empty() && path.bucket.find('.') == std::string::npos;
  const std::string endpoint = settings_.endpoint.empty() ? "https://" + server_name() : settings_.endpoint;
  const std::size_t host_at = endpoint.find("://") + 3,
                    path_at = std::min(endpoint.find('/', host_at), endpoint.size());
  const std::string host = str(is_host_style ? path.bucket + "." : "", endpoint.substr(host_at, path_at - host_at));
  const std::string url_path = str(endpoint.substr(path_at), is_host_style ? "" : "/" + path.bucket, "/",
                                   percent_encode(path.key, /*keeps_slashes=*/true));
  HttpRequest request;
  request.method = method;
  request.url = endpoint.substr(0, host_at) + host + url_path + encode_query(query);
  request.upload = body;
  request.timeout_seconds = 0;
  request.stall_seconds = settings_.stall_seconds;
  request.ca_file = settings_.ca_file;
  request.headers = {"Expect:", "Content-Type: application/octet-stream", "Host: " + host};
  return {std::move(request),
          {.method = method, .host = host, .path = url_path, .query = query, .body_hash = to_hex(sha256(body))}};
}

/// A signature is valid for minutes only, so each attempt has its own.
HttpResponse S3Client::send_once(const Request& request) {
  HttpRequest http = request.http;
  for (std::string& header : sign_s3_request(request.content, settings_, s3_time_now()))
    http.headers.push_back(std::move(header));
  return http_.send(http);
}

/// Waits about 0.1 s, 0.2 s, 0.4 s, ... up to 20 s; random, so that the ranks of a run do not repeat in step.
void S3Client::sleep_before(int attempt) {
  constexpr double kMaxSeconds = 20;
  const double seconds = std::min(kMaxSeconds, settings_.first_delay_seconds * std::exp2(attempt - 1));
  const double share = std::uniform_real_distribution<double>(0.5, 1.0)(random_);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds * share));
}

HttpResponse S3Client::send(const Request& request, const S3Path& path,
                            const std::function<std::string(const HttpResponse&)>& check,
                            const std::function<void()>& begin_attempt) {
  std::string reason;
  for (int attempt = 0; attempt < settings_.max_attempts; ++attempt) {
    if (attempt > 0) sleep_before(attempt);
    if (begin_attempt) begin_attempt();
    HttpResponse response = send_once(request);
    if (response.is_success()) {
      reason = check ? check(response) : std::string();
      if (reason.empty()) return response;
      continue;
    }
    check_input(!response.is_too_long || response.status >= 300, path.string(), ": ", response.error);
    if (!is_retryable(response)) return response;
    reason = reason_of(response);
  }
  fail(ExitCode::PeerLost, path.string(), ": the object store ", server_name(), " failed ", settings_.max_attempts,
       " times, the last time with: ", reason);
}

void S3Client::fail_refused(const HttpResponse& response, const S3Path& path) const {
  fail(ExitCode::BadInput, path.string(), ": refused by the object store ", server_name(), ": ", reason_of(response),
       advice_for(response));
}

HttpResponse S3Client::send_or_missing(const Request& request, const S3Path& path) {
  HttpResponse response = send(request, path);
  const bool is_missing = response.status == 404 && error_code(response) != "NoSuchBucket";
  if (!response.is_success() && !is_missing) fail_refused(response, path);
  return response;
}

/// Throws BadInput if the bucket does not exist. Responses to HEAD have no body, so find() cannot distinguish a missing
/// bucket from a missing object.
void S3Client::check_bucket_exists(const S3Path& path) {
  const HttpResponse response = send(request("HEAD", {path.bucket, ""}), path);
  check_input(response.status != 404, path.string(), ": the object store ", server_name(), " has no bucket '",
              path.bucket, "'; create it, or correct its name or the endpoint (AWS_ENDPOINT_URL_S3)");
}

std::optional<S3Object> S3Client::find(const S3Path& path) {
  const HttpResponse response = send_or_missing(request("HEAD", path), path);
  if (response.status == 404) {
    check_bucket_exists(path);
    return std::nullopt;
  }
  const auto bytes = parse_number<i64>(response.header("content-length"));
  check_input(bytes && *bytes >= 0, path.string(), ": the object store ", server_name(), " does not state its size");
  return S3Object{.key = path.key, .bytes = *bytes, .etag = response.header("etag")};
}

S3Object S3Client::head(const S3Path& path) {
  const std::optional<S3Object> object = find(path);
  check_input(object.has_value(), path.string(), ": does not exist in the object store ", server_name(),
              "; check the name and the endpoint (AWS_ENDPOINT_URL_S3)");
  return *object;
}

std::optional<std::string> S3Client::get(const S3Path& path, std::size_t max_bytes) {
  Request get = request("GET", path);
  get.http.max_body_bytes = max_bytes;
  HttpResponse response = send_or_missing(get, path);
  if (response.status == 404) return std::nullopt;
  return std::move(response.body);
}

void S3Client::read(const S3Path& path, const S3Object& object, i64 offset, std::span<std::byte> to) {
  if (to.empty()) return;
  const i64 last = offset + std::ssize(to) - 1;
  MCPP_CHECK(offset >= 0 && last < object.bytes, path.string(), ": bytes ", offset, " to ", last, " of ", object.bytes);
  std::size_t received = 0;
  Request get = request("GET", path);
  get.http.headers.push_back(str("Range: bytes=", offset, "-", last));
  if (!object.etag.empty()) get.http.headers.push_back("If-Match: " + object.etag);
  get.http.receive = [&](std::span<const std::byte> piece) {
    if (piece.size() > to.size() - received) return false;
    std::memcpy(to.data() + received, piece.data(), piece.size());
    received += piece.size();
    return true;
  };
  const auto check = [&](const HttpResponse& response) -> std::string {
    const std::string range = str("bytes ", offset, "-", last, "/", object.bytes);
    const bool is_whole = response.status == 200 && std::ssize(to) == object.bytes;
    if (!is_whole && response.header("content-range") != range)
      return str("the response has '", response.header("content-range"), "' instead of '", range, "'");
    if (received != to.size()) return str("the response has ", received, " bytes instead of ", to.size());
    if (const std::string etag = response.header("etag"); etag != object.etag && !etag.empty())
      return str("the response has the ETag ", etag, " instead of ", object.etag);
    return {};
  };
  const HttpResponse response = send(get, path, check, [&] { received = 0; });
  check_input(response.status != 412 && response.status != 404, path.string(),
              response.status == 404 ? ": was removed" : ": was replaced",
              " while it was in use; restart with the new object, or restore the old one");
  if (!response.is_success()) fail_refused(response, path);
}

void S3Client::put(const S3Path& path, std::span<const std::byte> content) {
  const HttpResponse response = send(request("PUT", path, {}, content), path);
  if (!response.is_success()) fail_refused(response, path);
}

void S3Client::remove(const S3Path& path) {
  send_or_missing(request("DELETE", path), path);
}

S3Client::Listing S3Client::list(const S3Path& folder, const std::string& delimiter) {
  Listing listing;
  Query query{{"list-type", "2"}, {"prefix", folder.key.empty() ? "" : folder.key + "/"}};
  if (!delimiter.empty()) query["delimiter"] = delimiter;
  while (true) {
    Request get = request("GET", {folder.bucket, ""}, query);
    get.http.max_body_bytes = kMaxListingBytes;
    const HttpResponse response = send(get, folder, [](const HttpResponse& answer) -> std::string {
      return answer.body.find("</ListBucketResult>") == std::string::npos ? "the listing is incomplete" : "";
    });
    if (!response.is_success()) fail_refused(response, folder);
    for (const std::string_view entry : xml_elements(response.body, "Contents")) {
      const auto bytes = parse_number<i64>(first_xml_value(entry, "Size"));
      check_input(bytes.has_value(), folder.string(), ": the object store ", server_name(),
                  " lists an object without a size");
      listing.objects.push_back({first_xml_value(entry, "Key"), *bytes, first_xml_value(entry, "ETag"),
                                 parse_time(first_xml_value(entry, "LastModified"))});
    }
    for (const std::string_view entry : xml_elements(response.body, "CommonPrefixes"))
      listing.folders.push_back(first_xml_value(entry, "Prefix"));
    const std::string next = first_xml_value(response.body, "NextContinuationToken");
    if (first_xml_value(response.body, "IsTruncated") != "true" || next.empty()) break;
    query["continuation-token"] = next;
  }
  return listing;
}

std::vector<S3Object> S3Client::list(const S3Path& folder) {
  std::vector<S3Object> objects = list(folder, "").objects;
  std::ranges::sort(objects, {}, &S3Object::key);
  return objects;
}

std::vector<std::string> S3Client::list_folders(const S3Path& folder) {
  const std::size_t prefix = folder.key.empty() ? 0 : folder.key.size() + 1;
  std::vector<std::string> names;
  for (const std::string& key : list(folder, "/").folders)
    if (key.size() > prefix + 1) names.push_back(key.substr(prefix, key.size() - prefix - 1));
  std::ranges::sort(names);
  return names;
}

std::string S3Client::begin_upload(const S3Path& path) {
  const HttpResponse response = send(request("POST", path, {{"uploads", ""}}), path, [](const HttpResponse& answer) {
    return std::string(first_xml_value(answer.body, "UploadId").empty() ? "the response has no upload id" : "");
  });
  if (!response.is_success()) fail_refused(response, path);
  return first_xml_value(response.body, "UploadId");
}

std::string S3Client::put_part(const S3Path& path, const std::string& upload, int number,
                               std::span<const std::byte> content) {
  const Request put = request("PUT", path, {{"partNumber", str(number)}, {"uploadId", upload}}, content);
  const HttpResponse response = send(put, path, [](const HttpResponse& answer) {
    return std::string(answer.header("etag").empty() ? "the response has no ETag" : "");
  });
  if (!response.is_success()) fail_refused(response, path);
  return response.header("etag");
}

void S3Client::complete_upload(const S3Path& path, const std::string& upload, std::span<const std::string> etags,
                               i64 bytes) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  int number = 0;
  for (const std::string& etag : etags)
    body += str("<Part><PartNumber>", ++number, "</PartNumber><ETag>", to_xml(etag), "</ETag></Part>");
  body += "</CompleteMultipartUpload>";
  const Request post = request("POST", path, {{"uploadId", upload}}, std::as_bytes(std::span(body)));
  // The store sends the status before it has joined the parts, so an error may follow in the body.
  const HttpResponse response = send(post, path, [](const HttpResponse& answer) {
    return answer.body.find("</CompleteMultipartUploadResult>") != std::string::npos ? std::string()
                                                                                     : reason_of(answer);
  });
  if (response.is_success()) return;
  // If the response to an earlier attempt was lost, the upload no longer exists and the object does.
  const std::optional<S3Object> object = response.status == 404 ? find(path) : std::nullopt;
  if (!object || object->bytes != bytes) fail_refused(response, path);
}

void S3Client::abort_upload(const S3Path& path, const std::string& upload) noexcept {
  try {
    send_once(request("DELETE", path, {{"uploadId", upload}}));
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace mcpp
