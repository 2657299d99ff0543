// HTTP server for tests: answers requests on a local port.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace mcpp::test {

struct ReceivedRequest {
  std::string method, path, headers, body;  ///< header names are in lower case
};
struct Answer {
  int status = 200;
  std::string body = "{}";
};

/// Answers one connection at a time until it is destroyed.
class HttpServer {
 public:
  /// `answer` is called on the server's thread for each request.
  explicit HttpServer(std::function<Answer(const ReceivedRequest&)> answer =
                          [](const ReceivedRequest&) { return Answer(); })
      : answer_(std::move(answer)), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(socket_, 16) != 0 || ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("cannot listen on a local port");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~HttpServer() {
    ::shutdown(socket_, SHUT_RDWR);  // ends accept()
    thread_.join();
    ::close(socket_);
  }

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::vector<ReceivedRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  /// Waits up to 20 seconds for `count` requests, and returns all of them.
  std::vector<ReceivedRequest> wait_for(std::size_t count) const {
    for (int i = 0; i < 2000 && requests().size() < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return requests();
  }

 private:
  void serve() {
    while (true) {
      const int connection = ::accept(socket_, nullptr, nullptr);
      if (connection < 0) return;
      answer_connection(connection);
      ::close(connection);
    }
  }

  void answer_connection(int connection) {
    std::string text;
    char buffer[4096];
    std::size_t body = std::string::npos, length = 0;
    while (body == std::string::npos || text.size() < body + length) {
      const ssize_t bytes = ::recv(connection, buffer, sizeof buffer, 0);
      if (bytes <= 0) return;
      text.append(buffer, static_cast<std::size_t>(bytes));
      if (body != std::string::npos) continue;
      if (const std::size_t end = text.find("\r\n\r\n"); end != std::string::npos) {
        body = end + 4;
        std::transform(text.begin() + static_cast<std::ptrdiff_t>(text.find("\r\n")),
                       text.begin() + static_cast<std::ptrdiff_t>(end),
                       text.begin() + static_cast<std::ptrdiff_t>(text.find("\r\n")),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        constexpr const char* kLength = "content-length: ";
        if (const std::size_t at = text.find(kLength); at < end)
          length = std::stoul(text.substr(at + std::string(kLength).size()));
      }
    }
    const std::size_t method = text.find(' '), path = text.find(' ', method + 1), line = text.find("\r\n");
    ReceivedRequest request{text.substr(0, method), text.substr(method + 1, path - method - 1),
                            text.substr(line, body - line), text.substr(body)};
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    const Answer answer = answer_(request);
    const std::string reply = "HTTP/1.1 " + std::to_string(answer.status) +
                              " x\r\nConnection: close\r\nContent-Length: " + std::to_string(answer.body.size()) +
                              "\r\n\r\n" + answer.body;
    for (std::size_t sent = 0; sent < reply.size();) {
      const ssize_t bytes = ::send(connection, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
      if (bytes <= 0) return;
      sent += static_cast<std::size_t>(bytes);
    }
  }

  std::function<Answer(const ReceivedRequest&)> answer_;
  int socket_, port_ = 0;
  mutable std::mutex mutex_;
  std::vector<ReceivedRequest> requests_;
  std::thread thread_;
};

}  // namespace mcpp::test
