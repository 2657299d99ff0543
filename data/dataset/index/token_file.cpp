#include "data/dataset/index/token_file.h"

namespace mcpp {

TokenFile::TokenFile(const Path& path, ObjectConnections& connections) : path_(path) {
  if (is_s3_path(path))
    object_ = std::make_unique<CachedObject>(S3Path::parse(path), connections.transfer(), read_node_cache_settings());
  else
    mapped_ = MappedFile(path);
}

std::span<const std::byte> TokenFile::read(u64 offset, u64 bytes, std::vector<std::byte>& buffer) const {
  if (!object_) return mapped_.bytes().subspan(offset, bytes);
  buffer.resize(bytes);
  object_->read(static_cast<i64>(offset), buffer);
  return buffer;
}

std::vector<std::byte> TokenFile::sample(std::span<const i64> offsets, i64 bytes) const {
  if (object_) return object_->read_uncached(offsets, bytes);
  std::vector<std::byte> result;
  for (const i64 offset : offsets) {
    const auto part = mapped_.bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

}  // namespace mcpp
