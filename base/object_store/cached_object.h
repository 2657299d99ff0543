// Random access to an object through the cache of the node.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/object_store/node_cache.h"

namespace mcpp {

/// Threads, connections and buffers that objects on one server share. Created for the first object, and kept as long
/// as this or any of them exists. Not thread-safe.
class ObjectConnections {
 public:
  /// Returns the transfer of all objects; throws like read_s3_settings().
  std::shared_ptr<S3Transfer> transfer();

 private:
  std::shared_ptr<S3Transfer> transfer_;
};

/// Object that is read in blocks, each of which is downloaded once per node. Reads that continue the previous one
/// download increasingly many blocks ahead. Thread-safe.
class CachedObject {
 public:
  static constexpr i64 kBlockBytes = i64{1} << 20;

  /// Throws BadInput if the object does not exist.
  CachedObject(const S3Path& path, std::shared_ptr<S3Transfer> transfer, const NodeCacheSettings& cache);

  const S3Object& object() const { return object_; }
  /// Fills `to` from byte `offset`. Throws like S3Client::read(), among others if the object was replaced. A full cache
  /// disk is not an error; blocks are then downloaded repeatedly.
  void read(i64 offset, std::span<std::byte> to);
  /// Returns `bytes` bytes from each of the offsets, in their order. Downloads only these bytes and does not use the
  /// cache. Throws like read().
  std::vector<std::byte> read_uncached(std::span<const i64> offsets, i64 bytes) const;

 private:
  void read_in_block(i64 block, i64 offset, std::span<std::byte> to);
  void download(i64 block, i64 offset, std::span<std::byte> to);
  i64 bytes_of(i64 block) const;
  Path entry(i64 block) const;

  std::mutex mutex_;
  S3Path path_;
  std::shared_ptr<S3Transfer> transfer_;
  NodeCache cache_;
  S3Object object_;
  std::vector<bool> is_verified_;  // by block: its entry was verified by this process
  i64 next_block_ = -1;            // block after the last one downloaded
  i64 run_ = 1;                    // blocks of the next download, if it continues the last one
};

}  // namespace mcpp
