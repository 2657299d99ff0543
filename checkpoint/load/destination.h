// Copying of a stored shard's elements to one target during streaming.
#pragma once
#include <vector>

#include "nn/tensor_region.h"
#include "tensor/dtype.h"

namespace mcpp {

/// Element types of source and target.
struct Types {
  DType stored, wanted;
};

/// Converts elements of one type to another; addresses may be unaligned.
using Converter = void (*)(const std::byte* from, std::byte* to, i64 count);

class Destination {
 public:
  /// `to` holds the elements of `target`, in the wanted type.
  Destination(const Region& shard, const Region& target, std::byte* to, Types types);

  /// Returns the number of the shard's elements that the target needs.
  i64 count() const { return count_; }
  /// Returns true if the target needs any of the shard's elements [begin, end). Must be called with ascending ranges,
  /// once each.
  bool needs(i64 begin, i64 end);
  /// Returns the destination address if the target needs the complete range contiguously and unconverted; otherwise
  /// nullptr.
  std::byte* direct_address(i64 begin, i64 end) const;
  /// Copies and converts the needed elements of the range; `numbers` may be unaligned.
  void copy_from(i64 begin, i64 end, const std::byte* numbers) const;

 private:
  struct Run {
    i64 from, to, count;
    i64 end() const { return from + count; }
  };

  std::byte* to_;
  Types types_;
  Converter converter_;    // nullptr: no conversion
  std::vector<Run> runs_;  // ascending
  std::size_t next_ = 0;   // first run that does not end before the last range
  i64 count_ = 0;
};

}  // namespace mcpp
