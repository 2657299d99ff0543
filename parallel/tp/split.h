// Slice of a global tensor held by one rank of a group.
#pragma once
#include "comm/communicator.h"
#include "nn/param.h"

namespace mcpp {

/// Returns this rank's box of an even split of `global` along `axis` over the ranks of `group`.
inline Box split_box(const Shape& global, int axis, const Communicator& group) {
  const i64 size = global[static_cast<std::size_t>(axis)];
  MCPP_CHECK(size % group.size() == 0, "axis ", axis, " of ", global, " over ", group.size(), " ranks");
  const i64 part = size / group.size();
  return slab(global, static_cast<std::size_t>(axis), part * group.rank(), part);
}

}  // namespace mcpp
