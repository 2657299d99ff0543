// Which bytes of a buffer that is used round and round are free: for copies through memory that must stay as it is
// until they are done, which they are in the order in which they began.
#pragma once
#include <deque>
#include <optional>

#include "base/types.h"

namespace mcpp {

class StagingRing {
 public:
  explicit StagingRing(i64 capacity) : capacity_(capacity) {}

  /// Where `bytes` neighbouring bytes are free, from then on in use; none when older pieces are in the way. bytes > 0.
  std::optional<i64> take(i64 bytes) {
    const std::optional<i64> begin = place_for(bytes);
    if (begin) pieces_.push_back({*begin, *begin + bytes});
    return begin;
  }
  /// The piece taken first of those in use.
  void give_back_oldest() { pieces_.pop_front(); }

 private:
  struct Piece {
    i64 begin, end;
  };

  std::optional<i64> place_for(i64 bytes) const {
    const i64 first = pieces_.empty() ? 0 : pieces_.front().begin, next = pieces_.empty() ? 0 : pieces_.back().end;
    const bool has_wrapped = !pieces_.empty() && next <= first;
    const i64 end = has_wrapped ? first : capacity_;
    if (next + bytes <= end) return next;
    if (!has_wrapped && bytes <= first) return 0;
    return std::nullopt;
  }

  i64 capacity_;
  std::deque<Piece> pieces_;
};

}  // namespace mcpp
