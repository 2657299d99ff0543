// Tokens of a dataset: the .bin file, or an object of an object store.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/object_store/cached_object.h"

namespace mcpp {

/// File with random access. Files are memory-mapped; objects (s3://) are read in blocks through the cache of the node.
/// Thread-safe.
class TokenFile {
 public:
  TokenFile() = default;
  /// Opens an object through `connections`. Throws BadInput if the file cannot be opened.
  TokenFile(const Path& path, ObjectConnections& connections);

  u64 size() const { return object_ ? static_cast<u64>(object_->object().bytes) : mapped_.bytes().size(); }
  const Path& path() const { return path_; }
  /// Returns `bytes` bytes from `offset` on. They are in `buffer` if the file is an object.
  std::span<const std::byte> read(u64 offset, u64 bytes, std::vector<std::byte>& buffer) const;
  /// Returns `bytes` bytes from each of the offsets, in their order. Of an object, only these bytes are downloaded;
  /// they are not cached.
  std::vector<std::byte> sample(std::span<const i64> offsets, i64 bytes) const;

 private:
  Path path_;
  MappedFile mapped_;
  std::unique_ptr<CachedObject> object_;
};

}  // namespace mcpp
