#include "data/dataset/index/token_file.h"

namespace mcpp {

TokenFile::TokenFile(const Path& path) : path_(path) {
  if (is_s3_path(path))
    object_ = std::make_unique<CachedObject>(S3Path::parse(path), read_s3_settings(), read_node_cache_settings());
  else
    mapped_ = MappedFile(path);
}

std::span<const std::byte> TokenFile::read(u64 offset, u64 bytes, std::vector<std::byte>& buffer) const {
  if (!object_) return mapped_.bytes().subspan(offset, bytes);
  buffer.resize(bytes);
  object_->read(static_cast<i64>(offset), buffer);
  return buffer;
}

}  // namespace mcpp
