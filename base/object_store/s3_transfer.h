// Transfers of large objects over several connections.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/io/scratch_file.h"
#include "base/object_store/s3_client.h"
#include "base/thread_pool.h"

namespace mcpp {

/// Transfers objects in parts over several connections, which stay open. Thread-safe: concurrent transfers share the
/// connections, so that the memory of their buffers, `connections` times `part_bytes`, does not depend on the number of
/// transfers.
class S3Transfer {
 public:
  static constexpr i64 kPartBytes = i64{8} << 20;
  static constexpr int kConnections = 4;

  /// `part_bytes`: size of the parts of an upload or download; larger files are uploaded in larger parts, since S3
  /// limits their number.
  explicit S3Transfer(const S3Settings& settings, i64 part_bytes = kPartBytes, int connections = kConnections);

  /// Returns the state of an object; throws like S3Client::head().
  S3Object head(const S3Path& path);

  /// Uploads a file. The object appears completely or not at all. Throws like S3Client.
  void upload(const Path& file, const S3Path& to);

  /// Receives bytes of an object. Threads call it concurrently for different parts.
  using PartWriter = std::function<void(i64 offset, std::span<const std::byte> bytes)>;
  /// Downloads bytes [begin, end) of an object and passes each part, in page-aligned memory, to `write`. Throws
  /// BadInput if the object has changed since `object` was returned, and the errors of `write`.
  void download(const S3Path& path, const S3Object& object, i64 begin, i64 end, const PartWriter& write);
  /// Returns `bytes` bytes from each of the offsets, in their order. Requests no other bytes. Throws like download().
  std::vector<std::byte> read_ranges(const S3Path& path, const S3Object& object, std::span<const i64> offsets,
                                     i64 bytes);

 private:
  /// Connection with a buffer for a part, which all its parts use.
  struct Connection {
    S3Client client;
    AlignedBytes buffer;
  };
  class Lease;
  void upload_parts(std::span<const std::byte> content, const S3Path& to);
  void run_parts(i64 count, const std::function<void(Connection&, i64 part)>& f);

  i64 part_bytes_;
  std::vector<Connection> connections_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<Connection*> free_;  // connections that no thread uses; guarded by mutex_
  ThreadPool threads_;             // last member: uses the connections
};

}  // namespace mcpp
