// HTTP requests through libcurl.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace mcpp {

struct HttpRequest {
  std::string method = "GET";
  std::string url;                   ///< http:// or https://
  std::vector<std::string> headers;  ///< "name: value"
  std::string body;
  double timeout_seconds = 30;  ///< of the complete request
};

struct HttpResponse {
  long status = 0;  ///< 0 if no response was received
  std::string body;
  std::string error;  ///< reason why no complete response was received; otherwise empty

  bool is_success() const { return error.empty() && status >= 200 && status < 300; }
  /// Returns true if the same request may succeed later: there was no response, or the server is overloaded or failed.
  bool is_retryable() const { return !error.empty() || status == 408 || status == 429 || status >= 500; }
  /// Returns the reason of a failure, for messages.
  std::string describe() const;
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
