// The slice of a global tensor that one rank of a group holds.
#pragma once
#include "comm/communicator.h"
#include "nn/param.h"

namespace mcpp {

/// Even split of `global` along `axis` over the ranks of `group`.
inline Box split_box(const Shape& global, int axis, const Communicator& group) {
  Box box{global, Shape(global.size(), 0), global};
  i64& size = box.shape[static_cast<std::size_t>(axis)];
  MCPP_CHECK(size % group.size() == 0, "axis ", axis, " of ", global, " over ", group.size(), " ranks");
  size /= group.size();
  box.offset[static_cast<std::size_t>(axis)] = size * group.rank();
  return box;
}

}  // namespace mcpp
