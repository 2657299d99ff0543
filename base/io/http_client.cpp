#include "base/io/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr double kConnectSeconds = 10;

void initialize_library() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

/// List of header lines of a request.
class HeaderList {
 public:
  explicit HeaderList(const std::vector<std::string>& headers) {
    for (const std::string& header : headers) list_ = curl_slist_append(list_, header.c_str());
  }
  ~HeaderList() { curl_slist_free_all(list_); }
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;

  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

/// Response in progress, with the reason why its body was refused.
struct Transfer {
  CURL* curl;
  const HttpRequest& request;
  HttpResponse& response;
  std::string refusal = {};
};

std::size_t receive_body(char* data, std::size_t size, std::size_t count, void* pointer) {
  Transfer& transfer = *static_cast<Transfer*>(pointer);
  const std::size_t bytes = size * count;
  long status = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
  if (transfer.request.receive && status >= 200 && status < 300) {
    if (transfer.request.receive(std::as_bytes(std::span(data, bytes)))) return bytes;
    transfer.refusal = "the response is longer than requested";
    return 0;
  }
  if (transfer.response.body.size() + bytes > transfer.request.max_body_bytes) {
    transfer.refusal = str("the response has more than ", transfer.request.max_body_bytes, " bytes");
    transfer.response.is_too_long = true;
    return 0;
  }
  transfer.response.body.append(data, bytes);
  return bytes;
}

/// Keeps the headers of the last response, since an interim one (100 Continue) may precede it.
std::size_t receive_header(char* data, std::size_t size, std::size_t count, void* pointer) {
  constexpr std::size_t kMaxHeaders = 256;
  std::map<std::string, std::string>& headers = static_cast<Transfer*>(pointer)->response.headers;
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) headers.clear();
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || headers.size() >= kMaxHeaders) return line.size();
  const std::size_t begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of(" \t\r\n");
  headers[to_lower(line.substr(0, colon))] =
      begin == std::string_view::npos || begin > end ? "" : std::string(line.substr(begin, end + 1 - begin));
  return line.size();
}

void set_body(CURL* curl, const HttpRequest& request) {
  if (request.method == "GET") return;
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    return;
  }
  const std::span<const std::byte> body =
      request.upload.empty() ? std::as_bytes(std::span(request.body)) : request.upload;
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.empty() ? "" : reinterpret_cast<const char*>(body.data()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
}

void set_limits(CURL* curl, const HttpRequest& request) {
  constexpr long kMinBytesPerSecond = 1024;
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(1e3 * kConnectSeconds));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(1e3 * request.timeout_seconds));
  if (request.stall_seconds <= 0) return;
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kMinBytesPerSecond);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(request.stall_seconds)));
}

}  // namespace

std::string HttpResponse::describe() const {
  if (!error.empty()) return error;
  constexpr std::size_t kShown = 200;
  const std::string text = body.substr(0, kShown);
  return str("HTTP status ", status, text.empty() ? "" : ": ", text);
}

std::string HttpResponse::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? std::string() : it->second;
}

struct HttpClient::Handle {
  CURL* curl = nullptr;
  ~Handle() { curl_easy_cleanup(curl); }
};

HttpClient::HttpClient() : handle_(std::make_unique<Handle>()) {
  initialize_library();
  handle_->curl = curl_easy_init();
  MCPP_CHECK(handle_->curl, "libcurl cannot be initialized");
}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

HttpResponse HttpClient::send(const HttpRequest& request) {
  CURL* const curl = handle_->curl;
  curl_easy_reset(curl);
  HttpResponse response;
  Transfer transfer{curl, request, response};
  const HeaderList headers(request.headers);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  set_body(curl, request);
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // other threads use signals
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, receive_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  if (!request.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, request.ca_file.c_str());
  set_limits(curl, request);
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error.data());
  const CURLcode code = curl_easy_perform(curl);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (code != CURLE_OK) {
    response.error = error[0] != '\0' ? error.data() : str("error ", static_cast<int>(code), " of libcurl");
    if (!transfer.refusal.empty()) response.error = transfer.refusal;
  }
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
  return response;
}

}  // namespace mcpp
