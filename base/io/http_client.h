// HTTP requests through libcurl.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mcpp {

/// Receives the body of a successful response piece by piece; returns false to abort the request.
using BodyReceiver = std::function<bool(std::span<const std::byte> piece)>;

struct HttpRequest {
  std::string method = "GET";
  std::string url;                         ///< http:// or https://
  std::vector<std::string> headers;        ///< "name: value"
  std::string body;                        ///< body, unless `upload` is set
  std::span<const std::byte> upload = {};  ///< body that is sent without a copy; must outlive the call
  double timeout_seconds = 30;             ///< of the complete request; 0 = none
  double stall_seconds = 0;  ///< ends a request that transfers less than 1 KiB/s during this time; 0 = never
  std::size_t max_body_bytes = std::size_t{16} << 20;  ///< a longer response, unless `receive` takes it, is an error
  BodyReceiver receive = {};                           ///< takes the body of a 2xx response; otherwise it is kept
  std::string ca_file = {};                            ///< certificates of trusted authorities; "" = the system's
};

struct HttpResponse {
  long status = 0;                                  ///< 0 if no response was received
  std::map<std::string, std::string> headers = {};  ///< by name in lower case
  std::string body;
  std::string error;         ///< reason why no complete response was received; otherwise empty
  bool is_too_long = false;  ///< the body exceeds HttpRequest::max_body_bytes; `error` says so

  bool is_success() const { return error.empty() && status >= 200 && status < 300; }
  /// Returns true if the same request may succeed later: there was no response, or the server is overloaded or failed.
  bool is_retryable() const { return !error.empty() || status == 408 || status == 429 || status >= 500; }
  /// Returns the reason of a failure, for messages.
  std::string describe() const;
  /// Returns a header by its name in lower case; "" if the response has none.
  std::string header(const std::string& name) const;
};

/// Sends requests one after another and keeps connections open. Not thread-safe; use one client per thread.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  /// Sends a request and waits for its response. Does not follow redirects.
  HttpResponse send(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace mcpp
