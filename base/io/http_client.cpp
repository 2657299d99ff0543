#include "base/io/http_client.h"

#include <curl/curl.h>

#include <array>
#include <mutex>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

std::size_t append_body(char* data, std::size_t size, std::size_t count, void* body) {
  static_cast<std::string*>(body)->append(data, size * count);
  return size * count;
}

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

}  // namespace

std::string HttpResponse::describe() const {
  if (!error.empty()) return error;
  constexpr std::size_t kShown = 200;
  const std::string text = body.substr(0, kShown);
  return str("HTTP status ", status, text.empty() ? "" : ": ", text);
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
  const HeaderList headers(request.headers);
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(1e3 * request.timeout_seconds));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // other threads use signals
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, append_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &response.body);
  if (request.method != "GET") {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  std::array<char, CURL_ERROR_SIZE> error{};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error.data());
  if (const CURLcode code = curl_easy_perform(curl); code != CURLE_OK)
    response.error = error[0] != '\0' ? error.data() : str("error ", static_cast<int>(code), " of libcurl");
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &response.status);
  return response;
}

}  // namespace mcpp
