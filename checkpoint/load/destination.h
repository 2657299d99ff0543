// Where the numbers of one stored shard go in one target, while they stream by.
#pragma once
#include <vector>

#include "nn/region.h"
#include "tensor/dtype.h"

namespace mcpp {

/// Element types before and after.
struct Types {
  DType stored, wanted;
};

/// Converts elements of one type to another; the addresses need not be aligned.
using Converter = void (*)(const std::byte* from, std::byte* to, i64 count);

class Destination {
 public:
  /// `to` holds the elements of `target`, in the wanted type; it outlives this.
  Destination(const Region& shard, const Region& target, std::byte* to, Types types);

  /// Elements of the shard that the target wants.
  i64 count() const { return count_; }
  /// Of the elements [begin, end) of the shard. Ranges are asked for in ascending order, by each of these but once.
  bool wants(i64 begin, i64 end);
  /// Where they belong, when the target wants all of them, one after another and as they are; else nullptr.
  std::byte* place_of(i64 begin, i64 end) const;
  /// Copies from them, converted, what the target wants; `numbers` need not be aligned.
  void take(i64 begin, i64 end, const std::byte* numbers) const;

 private:
  struct Run {
    i64 from, to, count;
    i64 end() const { return from + count; }
  };

  std::byte* to_;
  Types types_;
  Converter converter_;    // nullptr: as they are
  std::vector<Run> runs_;  // ascending
  std::size_t next_ = 0;   // the first that does not end before what was asked for last
  i64 count_ = 0;
};

}  // namespace mcpp
