// Client of an S3-compatible store. Requests that fail because of the network or the server are repeated with
// increasing, random delays.
#pragma once
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/io/http_client.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/s3_settings.h"

namespace mcpp {

/// State of an object. Two objects of the same key and ETag have the same content.
struct S3Object {
  std::string key;
  i64 bytes = 0;
  std::string etag;                  ///< with its quotes
  std::optional<i64> modified = {};  ///< in seconds since 1970, by the clock of the store; only from list()
};

/// Sends requests to one store. All functions throw Error: PeerLost if the store does not answer after all attempts or
/// answers with server errors, so that a restart makes sense; BadInput if it refuses the request, with its reason and
/// the path. Messages contain no credentials. Not thread-safe; use one client per thread.
class S3Client {
 public:
  explicit S3Client(S3Settings settings);

  /// Returns the state of an object, or std::nullopt if it does not exist. Throws BadInput if the bucket does not
  /// exist.
  std::optional<S3Object> find(const S3Path& path);
  /// Returns find(); throws BadInput if the object does not exist.
  S3Object head(const S3Path& path);
  /// Returns the content of an object, or std::nullopt if it does not exist. Throws BadInput if it has more than
  /// `max_bytes`.
  std::optional<std::string> get(const S3Path& path, std::size_t max_bytes = std::size_t{1} << 30);
  /// Fills `to` from byte `offset` of an object. Throws BadInput if it has changed since `object` was returned.
  void read(const S3Path& path, const S3Object& object, i64 offset, std::span<std::byte> to);
  /// Creates or replaces an object. It appears completely or not at all.
  void put(const S3Path& path, std::span<const std::byte> content);
  void put(const S3Path& path, std::string_view content) { put(path, std::as_bytes(std::span(content))); }
  /// Removes an object; succeeds if it does not exist.
  void remove(const S3Path& path);
  /// Returns the objects whose keys begin with the folder's key and a slash, by ascending key.
  std::vector<S3Object> list(const S3Path& folder);
  /// Returns the names of the folders in a folder, without slashes, by ascending name.
  std::vector<std::string> list_folders(const S3Path& folder);

  // Uploads in parts. The object appears with complete_upload().

  /// Begins an upload and returns its id.
  std::string begin_upload(const S3Path& path);
  /// Uploads part `number`, from 1 on, and returns its ETag.
  std::string put_part(const S3Path& path, const std::string& upload, int number, std::span<const std::byte> content);
  /// Joins the parts, whose total size is `bytes`.
  void complete_upload(const S3Path& path, const std::string& upload, std::span<const std::string> etags, i64 bytes);
  /// Removes the parts of an upload that will not be completed. Errors are ignored: the store's lifecycle rules remove
  /// what remains.
  void abort_upload(const S3Path& path, const std::string& upload) noexcept;

 private:
  using Query = std::map<std::string, std::string>;
  struct Listing {
    std::vector<S3Object> objects;
    std::vector<std::string> folders;  ///< keys with a trailing slash
  };

  struct Request;  // not signed
  /// Returns a request; `body` must outlive it.
  Request request(const char* method, const S3Path& path, const Query& query = {},
                  std::span<const std::byte> body = {}) const;
  /// Signs and sends a request once.
  HttpResponse send_once(const Request& request);
  /// Sends a request until it succeeds or is refused, and returns the response. `check` returns why a successful
  /// response is incomplete, or "". `begin_attempt` is called before each attempt.
  HttpResponse send(const Request& request, const S3Path& path,
                    const std::function<std::string(const HttpResponse&)>& check = {},
                    const std::function<void()>& begin_attempt = {});
  /// Returns send()'s response, whose status must be 2xx or 404.
  HttpResponse send_or_missing(const Request& request, const S3Path& path);
  void check_bucket_exists(const S3Path& path);
  [[noreturn]] void fail_refused(const HttpResponse& response, const S3Path& path) const;
  std::string server_name() const;
  Listing list(const S3Path& folder, const std::string& delimiter);
  void sleep_before(int attempt);

  S3Settings settings_;
  HttpClient http_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace mcpp
