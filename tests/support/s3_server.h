// S3-compatible server for tests, in memory, with faults on request. It checks neither credentials nor signatures;
// tests/s3/run.sh uses a server that does.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/object_store/s3_settings.h"

namespace mcpp::test {

/// Request as the server received it. `path` is decoded, without the query.
struct S3Request {
  std::string method, path, body;
  std::map<std::string, std::string> query, headers;  ///< header names in lower case
};

/// Deviation from the right answer to one request. The default is none.
struct S3Fault {
  int status = 0;                 ///< answers with this status and a plain error
  std::string error_code = {};    ///< code in the error's body
  bool drops_connection = false;  ///< closes the connection without an answer, after the request took effect
  bool ignores_request = false;   ///< with drops_connection: the request has no effect
  double delay_seconds = 0;       ///< before the answer
  long truncated_to = -1;         ///< sends only so many bytes of the body, then closes the connection
  long shortened_to = -1;         ///< sends only so many bytes of the body, with a matching Content-Length
  bool has_wrong_range = false;   ///< states and sends the range one byte later
  std::string etag = {};          ///< states this ETag
};

class S3Server {
 public:
  using Faults = std::function<S3Fault(const S3Request&)>;

  S3Server() { start(); }
  ~S3Server() { stop(); }
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  /// Settings of a client of this server: short delays, and as many attempts as given.
  S3Settings settings(int max_attempts = 4) const {
    S3Settings settings;
    settings.endpoint = endpoint();
    settings.region = "us-east-1";
    settings.access_key = "test-key";
    settings.secret_key = "test-secret";
    settings.max_attempts = max_attempts;
    settings.first_delay_seconds = 0.001;
    settings.stall_seconds = 1;
    return settings;
  }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  /// Starts to listen, on the same port as before stop().
  void start() {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(socket_, 64) != 0 || ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("cannot listen on a local port");
    port_ = ntohs(address.sin_port);
    is_stopped_ = false;
    acceptor_ = std::thread([this] { accept_connections(); });
  }
  /// Closes all connections, in the middle of requests, and stops listening. Objects remain.
  void stop() {
    if (is_stopped_.exchange(true)) return;
    ::shutdown(socket_, SHUT_RDWR);
    acceptor_.join();
    ::close(socket_);
    {
      const std::lock_guard lock(connections_mutex_);
      for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  /// Sets the function that chooses the fault of each request; it is called by the server's threads, one at a time.
  void set_faults(Faults faults) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(faults);
  }
  /// Returns all requests so far, without the content of objects.
  std::vector<S3Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }
  /// Returns the objects by "/bucket/key".
  std::map<std::string, std::string> objects() const {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  void set_object(const std::string& path, std::string content) {
    const std::lock_guard lock(mutex_);
    objects_[path] = std::move(content);
  }
  void remove_object(const std::string& path) {
    const std::lock_guard lock(mutex_);
    objects_.erase(path);
  }
  /// Makes the server answer as if it had no bucket of this name.
  void remove_bucket(const std::string& name) {
    const std::lock_guard lock(mutex_);
    removed_buckets_.insert(name);
  }
  /// Sets the age that listings state for all objects.
  void set_object_age(std::time_t seconds) { object_age_ = seconds; }
  std::size_t uploads_in_progress() const {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }

 private:
  struct Answer {
    int status = 200;
    std::map<std::string, std::string> headers = {};
    std::string body = {};
    bool has_no_body = false;  ///< HEAD: only the length of the body is sent
  };
  struct Upload {
    std::string path;
    std::map<int, std::string> parts;
  };

  static std::string etag_of(const std::string& content) { return "\"" + checksum_hex(content) + "\""; }

  static std::string decode(const std::string& text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%' || i + 2 >= text.size()) {
        result += text[i];
        continue;
      }
      result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    }
    return result;
  }

  void accept_connections() {
    while (true) {
      const int connection = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      const std::lock_guard lock(connections_mutex_);
      connections_.insert(connection);
      threads_.emplace_back([this, connection] {
        while (serve_request(connection)) {
        }
        const std::lock_guard closing(connections_mutex_);
        connections_.erase(connection);
        ::close(connection);
      });
    }
  }

  /// Receives a request; returns false if the connection ends.
  static bool receive(int connection, S3Request& request) {
    std::string text;
    std::vector<char> buffer(std::size_t{1} << 18);
    std::size_t body = std::string::npos, length = 0;
    while (body == std::string::npos || text.size() < body + length) {
      const ssize_t bytes = ::recv(connection, buffer.data(), buffer.size(), 0);
      if (bytes <= 0) return false;
      text.append(buffer.data(), static_cast<std::size_t>(bytes));
      if (body != std::string::npos) continue;
      const std::size_t end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      body = end + 4;
      for (std::size_t line = text.find("\r\n") + 2; line < end;) {
        const std::size_t next = text.find("\r\n", line), colon = text.find(':', line);
        std::string name = text.substr(line, colon - line);
        std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
        request.headers[name] = text.substr(colon + 2, next - colon - 2);
        line = next + 2;
      }
      if (request.headers.contains("content-length")) length = std::stoul(request.headers["content-length"]);
    }
    const std::size_t space = text.find(' ');
    request.method = text.substr(0, space);
    const std::string target = text.substr(space + 1, text.find(' ', space + 1) - space - 1);
    request.path = decode(target.substr(0, target.find('?')));
    for (std::size_t at = target.find('?'); at != std::string::npos; at = target.find('&', at + 1)) {
      const std::string pair = target.substr(at + 1, target.find('&', at + 1) - at - 1);
      const std::size_t equals = pair.find('=');
      request.query[decode(pair.substr(0, equals))] =
          equals == std::string::npos ? "" : decode(pair.substr(equals + 1));
    }
    request.body = text.substr(body);
    return true;
  }

  bool serve_request(int connection) {
    S3Request request;
    if (!receive(connection, request)) return false;
    S3Fault fault;
    Answer answer;
    {
      const std::lock_guard lock(mutex_);
      if (faults_) fault = faults_(request);
      if (fault.status != 0)
        answer = error(fault.status, fault.error_code);
      else if (!fault.ignores_request)
        answer = answer_to(request, fault);
      requests_.push_back({request.method, request.path, "", request.query, request.headers});
    }
    if (request.method == "HEAD") answer.has_no_body = true;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(fault.delay_seconds);
    while (std::chrono::steady_clock::now() < end && !is_stopped_)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (fault.drops_connection) {
      ::shutdown(connection, SHUT_RDWR);
      return false;
    }
    return send_answer(connection, answer, fault);
  }

  static bool send_answer(int connection, Answer& answer, const S3Fault& fault) {
    if (fault.shortened_to >= 0)
      answer.body.resize(std::min<std::size_t>(answer.body.size(), static_cast<std::size_t>(fault.shortened_to)));
    if (!fault.etag.empty()) answer.headers["ETag"] = fault.etag;
    std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " x\r\n";
    for (const auto& [name, value] : answer.headers) head += name + ": " + value + "\r\n";
    head += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n";
    if (answer.has_no_body) answer.body.clear();
    const bool is_truncated = fault.truncated_to >= 0;
    if (is_truncated)
      answer.body.resize(std::min<std::size_t>(answer.body.size(), static_cast<std::size_t>(fault.truncated_to)));
    const bool is_sent = send_all(connection, head) && send_all(connection, answer.body);
    if (is_truncated) ::shutdown(connection, SHUT_RDWR);
    return is_sent && !is_truncated;
  }

  static bool send_all(int connection, const std::string& text) {
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t bytes = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (bytes <= 0) return false;
      sent += static_cast<std::size_t>(bytes);
    }
    return true;
  }

  static Answer error(int status, const std::string& code) {
    return {.status = status, .body = "<Error><Code>" + code + "</Code><Message>a reason</Message></Error>"};
  }

  Answer answer_to(const S3Request& request, const S3Fault& fault) {
    const auto has = [&](const char* key) { return request.query.contains(key); };
    const std::string bucket = request.path.substr(1, request.path.find('/', 1) - 1);
    if (removed_buckets_.contains(bucket)) return error(404, "NoSuchBucket");
    if (request.method == "HEAD" && request.path == "/" + bucket + "/") return {};
    if (request.method == "GET" && has("list-type")) return list(request);
    if (request.method == "POST" && has("uploads")) return begin_upload(request);
    if (has("uploadId")) return continue_upload(request);
    if (request.method == "PUT") {
      objects_[request.path] = request.body;
      return {.headers = {{"ETag", etag_of(request.body)}}};
    }
    if (request.method == "DELETE") {
      objects_.erase(request.path);
      return {.status = 204};
    }
    const auto it = objects_.find(request.path);
    if (it == objects_.end()) return error(404, "NoSuchKey");
    return get(request, it->second, fault);
  }

  static Answer get(const S3Request& request, const std::string& content, const S3Fault& fault) {
    Answer answer{.headers = {{"ETag", etag_of(content)}}};
    const auto expected = request.headers.find("if-match");
    if (expected != request.headers.end() && expected->second != etag_of(content))
      return error(412, "PreconditionFailed");
    const auto range = request.headers.find("range");
    if (range == request.headers.end()) {
      answer.body = content;
      return answer;
    }
    const std::size_t dash = range->second.find('-'), shift = fault.has_wrong_range ? 1 : 0;
    const std::size_t first = std::stoul(range->second.substr(6, dash - 6)) + shift,
                      last = std::min(std::stoul(range->second.substr(dash + 1)) + shift, content.size() - 1);
    answer.status = 206;
    answer.headers["Content-Range"] =
        "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/" + std::to_string(content.size());
    answer.body = content.substr(first, last - first + 1);
    return answer;
  }

  /// Lists two entries at a time, so that tests read several pages.
  Answer list(const S3Request& request) const {
    constexpr std::size_t kPage = 2;
    const std::string bucket = request.path.substr(0, request.path.find('/', 1)) + "/";
    const auto value = [&](const char* key) { return request.query.contains(key) ? request.query.at(key) : ""; };
    const std::string prefix = value("prefix"), delimiter = value("delimiter"), after = value("continuation-token");
    std::map<std::string, std::string> entries;  // by key
    for (const auto& [path, content] : objects_) {
      if (!path.starts_with(bucket + prefix)) continue;
      const std::string key = path.substr(bucket.size());
      const std::size_t end = delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
      if (end != std::string::npos)
        entries[key.substr(0, end + 1)] =
            "<CommonPrefixes><Prefix>" + key.substr(0, end + 1) + "</Prefix></CommonPrefixes>";
      else
        entries[key] = "<Contents><Key>" + key + "</Key><ETag>&quot;" + checksum_hex(content) + "&quot;</ETag><Size>" +
                       std::to_string(content.size()) + "</Size><LastModified>" + time_of_change() +
                       "</LastModified></Contents>";
    }
    Answer answer{.body = "<?xml version=\"1.0\"?><ListBucketResult>"};
    std::size_t count = 0;
    std::string last;
    for (auto it = entries.upper_bound(after); it != entries.end(); ++it) {
      if (count++ == kPage) {
        answer.body += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + last + "</NextContinuationToken>";
        break;
      }
      answer.body += it->second;
      last = it->first;
    }
    answer.body += "</ListBucketResult>";
    return answer;
  }

  std::string time_of_change() const {
    const std::time_t time = std::time(nullptr) - object_age_;
    std::tm parts{};
    ::gmtime_r(&time, &parts);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.000Z", &parts);
    return text;
  }

  Answer begin_upload(const S3Request& request) {
    const std::string id = "upload " + std::to_string(++last_upload_);
    uploads_[id] = {request.path, {}};
    return {.body = "<InitiateMultipartUploadResult><UploadId>" + id + "</UploadId></InitiateMultipartUploadResult>"};
  }

  Answer continue_upload(const S3Request& request) {
    const auto it = uploads_.find(request.query.at("uploadId"));
    if (it == uploads_.end()) return error(404, "NoSuchUpload");
    if (request.method == "DELETE") {
      uploads_.erase(it);
      return {.status = 204};
    }
    if (request.method == "PUT") {
      it->second.parts[std::stoi(request.query.at("partNumber"))] = request.body;
      return {.headers = {{"ETag", etag_of(request.body)}}};
    }
    std::string content;
    for (const auto& [number, part] : it->second.parts) content += part;
    objects_[it->second.path] = std::move(content);
    uploads_.erase(it);
    return {.body = "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"};
  }

  mutable std::mutex mutex_;
  Faults faults_;
  std::map<std::string, std::string> objects_;
  std::set<std::string> removed_buckets_;
  std::map<std::string, Upload> uploads_;
  std::vector<S3Request> requests_;
  int last_upload_ = 0;
  std::atomic<std::time_t> object_age_ = 0;

  int socket_ = -1, port_ = 0;
  std::atomic<bool> is_stopped_ = true;
  std::mutex connections_mutex_;
  std::set<int> connections_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace mcpp::test
