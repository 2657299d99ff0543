#include "base/object_store/cached_object.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"

namespace mcpp {

std::shared_ptr<S3Transfer> ObjectConnections::transfer() {
  if (!transfer_) transfer_ = std::make_shared<S3Transfer>(read_s3_settings(), 4 * CachedObject::kBlockBytes);
  return transfer_;
}

CachedObject::CachedObject(const S3Path& path, std::shared_ptr<S3Transfer> transfer, const NodeCacheSettings& cache)
    : path_(path),
      transfer_(std::move(transfer)),
      cache_(cache),
      object_(transfer_->head(path)),
      is_verified_(static_cast<std::size_t>(ceil_div(object_.bytes, kBlockBytes)), false) {}

i64 CachedObject::bytes_of(i64 block) const {
  return std::min(kBlockBytes, object_.bytes - block * kBlockBytes);
}

Path CachedObject::entry(i64 block) const {
  return cache_.entry(path_, object_, str("block-", block));
}

void CachedObject::read(i64 offset, std::span<std::byte> to) {
  MCPP_CHECK(offset >= 0 && offset + std::ssize(to) <= object_.bytes, path_.string(), ": bytes ", offset, " to ",
             offset + std::ssize(to), " of ", object_.bytes);
  const std::lock_guard lock(mutex_);
  while (!to.empty()) {
    const i64 block = offset / kBlockBytes, in_block = offset % kBlockBytes;
    const auto part = to.first(static_cast<std::size_t>(std::min(std::ssize(to), bytes_of(block) - in_block)));
    read_in_block(block, in_block, part);
    offset += std::ssize(part);
    to = to.subspan(part.size());
  }
}

void CachedObject::read_in_block(i64 block, i64 offset, std::span<std::byte> to) {
  const auto number = static_cast<std::size_t>(block);
  const Path path = entry(block);
  if (cache_.read_block(path, bytes_of(block), offset, to, !is_verified_[number])) {
    is_verified_[number] = true;
    return;
  }
  const NodeCache::Lock lock(cache_, path);
  if (!cache_.read_block(path, bytes_of(block), offset, to, /*verifies=*/true)) download(block, offset, to);
  is_verified_[number] = true;
}

/// Downloads a block, and blocks after it if the last download ended where it begins.
void CachedObject::download(i64 block, i64 offset, std::span<std::byte> to) {
  constexpr i64 kMaxRun = 16;
  run_ = block == next_block_ ? std::min(2 * run_, kMaxRun) : 1;
  const i64 begin = block * kBlockBytes, end = std::min(object_.bytes, begin + run_ * kBlockBytes);
  std::mutex mutex;  // serializes the writes of parts
  transfer_->download(path_, object_, begin, end, [&](i64 at, std::span<const std::byte> part) {
    const std::lock_guard lock(mutex);
    if (at == begin) std::memcpy(to.data(), part.data() + offset, to.size());
    for (i64 i = at / kBlockBytes; !part.empty(); ++i) {
      const auto bytes = static_cast<std::size_t>(bytes_of(i));
      cache_.write_block(entry(i), part.first(bytes));
      part = part.subspan(bytes);
    }
  });
  next_block_ = ceil_div(end, kBlockBytes);
}

std::vector<std::byte> CachedObject::read_uncached(std::span<const i64> offsets, i64 bytes) const {
  return transfer_->read_ranges(path_, object_, offsets, bytes);
}

}  // namespace mcpp
