// Ring allocator of staging memory for asynchronous copies that complete in the order in which they start.
#pragma once
#include <deque>
#include <optional>

#include "base/types.h"

namespace mcpp {

class StagingRing {
 public:
  explicit StagingRing(i64 capacity) : capacity_(capacity) {}

  /// Reserves `bytes` > 0 contiguous bytes and returns their offset; nullopt while older chunks occupy the space.
  std::optional<i64> take(i64 bytes) {
    const std::optional<i64> begin = find_free_offset(bytes);
    if (begin) chunks_.push_back({*begin, *begin + bytes});
    return begin;
  }
  /// Releases the oldest reserved chunk.
  void release_oldest() { chunks_.pop_front(); }

 private:
  struct Chunk {
    i64 begin, end;
  };

  std::optional<i64> find_free_offset(i64 bytes) const {
    const i64 first = chunks_.empty() ? 0 : chunks_.front().begin, next = chunks_.empty() ? 0 : chunks_.back().end;
    const bool has_wrapped = !chunks_.empty() && next <= first;
    const i64 end = has_wrapped ? first : capacity_;
    if (next + bytes <= end) return next;
    if (!has_wrapped && bytes <= first) return 0;
    return std::nullopt;
  }

  i64 capacity_;
  std::deque<Chunk> chunks_;
};

}  // namespace mcpp
