// Copies of objects, or of blocks of objects, on a disk of the node. The processes of a node share them; the least
// recently used ones are removed when the cache is full.
#pragma once
#include <span>
#include <string>

#include "base/file.h"
#include "base/object_store/s3_settings.h"
#include "base/object_store/s3_transfer.h"

namespace mcpp {

struct NodeCacheSettings {
  Path folder;
  i64 max_bytes = i64{100} << 30;
};

/// Reads MEGATRON_CPP_CACHE (default: megatron_cpp in XDG_CACHE_HOME or ~/.cache) and MEGATRON_CPP_CACHE_BYTES
/// (default: 100 GiB). Throws BadInput if a value is malformed.
NodeCacheSettings read_node_cache_settings(const Environment& environment);
NodeCacheSettings read_node_cache_settings();  ///< reads the environment of the process

/// Cache of objects. An entry belongs to a path, ETag and size, so a replaced object never yields old content. Any
/// number of processes may use the folder concurrently, and a process may be killed at any time: entries appear
/// complete or not at all. Not thread-safe.
class NodeCache {
 public:
  /// Creates the folder; throws BadInput if that fails.
  explicit NodeCache(NodeCacheSettings settings);

  /// Entry of an object's folder.
  Path entry(const S3Path& path, const S3Object& object, std::string_view name) const;

  /// Returns the path of a copy of the object. Downloads it unless the cache has it, while other processes that need it
  /// wait. Open it soon: it may be removed a minute after its last use, which does not affect open files. Throws like
  /// S3Transfer, and BadInput if the disk or the cache is too small.
  Path fetch(const S3Path& path, const S3Object& object, S3Transfer& transfer);

  /// Copies bytes of a block from its entry. Returns false if the cache does not have it, or if `verifies` and the
  /// entry is damaged.
  bool read_block(const Path& entry, i64 block_bytes, i64 offset, std::span<std::byte> to, bool verifies) const;
  /// Stores a block. Does nothing if the disk is full, since the caller has the block.
  void write_block(const Path& entry, std::span<const std::byte> block);

  /// Lock that processes hold while they add an entry, so that only one of them downloads it.
  class Lock {
   public:
    Lock(const NodeCache& cache, const Path& entry);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int descriptor_;
  };

 private:
  /// Removes the least recently used entries if the cache would otherwise exceed its size, or the disk its free space,
  /// with `bytes` more.
  void make_space(i64 bytes);
  void account(i64 bytes);

  NodeCacheSettings settings_;
  i64 unaccounted_;  // bytes added since make_space()
};

}  // namespace mcpp
