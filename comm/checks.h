// Argument checks shared by the Communicator backends. They throw when a call breaks the Communicator contract.
#pragma once
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"

namespace mcpp {

inline void check_on_cpu(const Tensor& t) {
  MCPP_CHECK(t.defined() && t.device().type() == DeviceType::Cpu, "this group supports only tensors in host memory");
}

inline const std::byte* first_byte(const Tensor& t) {
  return static_cast<const std::byte*>(t.raw());
}

/// Checks the arguments of reduce_scatter and all_gather: their sizes, and that a shard inside `full` is this rank's
/// own part.
inline void check_fits(const Tensor& shard, const Tensor& full, const Communicator& group) {
  MCPP_CHECK(shard.dtype() == full.dtype() && full.numel() == group.size() * shard.numel(), "a shard of ",
             shard.numel(), " ", name_of(shard.dtype()), " does not fit a tensor of ", full.numel(), " ",
             name_of(full.dtype()), " over ", group.size(), " ranks");
  const std::byte *begin = first_byte(full), *own = first_byte(shard);
  const bool is_disjoint = own + shard.bytes() <= begin || begin + full.bytes() <= own;
  MCPP_CHECK(is_disjoint || own == begin + group.rank() * shard.bytes(), "the shard overlaps another rank's part");
}

inline void check_shard(const Tensor& shard, const Tensor& full, const Communicator& group) {
  check_on_cpu(shard);
  check_on_cpu(full);
  check_fits(shard, full, group);
}

inline void check_same_kind(const Tensor& in, const Tensor& out) {
  MCPP_CHECK(in.dtype() == out.dtype() && in.numel() == out.numel(), "tensors of ", in.numel(), " ",
             name_of(in.dtype()), " and ", out.numel(), " ", name_of(out.dtype()),
             " must have the same dtype and size");
}

/// Checks the arguments of all_to_all.
inline void check_equal_parts(const Tensor& in, const Tensor& out, const Communicator& group) {
  check_same_kind(in, out);
  MCPP_CHECK(in.numel() % group.size() == 0, in.numel(), " elements cannot be divided into ", group.size(),
             " equal parts");
}

inline void check_exchange(const Tensor& in, const Tensor& out, const Communicator& group) {
  check_on_cpu(in);
  check_on_cpu(out);
  check_equal_parts(in, out, group);
}

/// Checks that there is one part per rank and that every part lies within the tensor.
inline void check_parts(const Tensor& t, std::span<const Part> parts, const Communicator& group) {
  MCPP_CHECK(static_cast<int>(parts.size()) == group.size(), parts.size(), " parts for ", group.size(), " ranks");
  for (const Part& part : parts)
    MCPP_CHECK(part.first >= 0 && part.count >= 0 && part.first + part.count <= t.numel(), "a part has elements [",
               part.first, ", ", part.first + part.count, ") of a tensor with ", t.numel());
}

/// Checks that a rank sends the number of elements that the receiver expects.
inline void check_counts(i64 sent, int source, i64 expected, int destination) {
  MCPP_CHECK(sent == expected, "rank ", source, " sends ", sent, " elements to rank ", destination, ", which expects ",
             expected);
}

inline void check_exchange(const Tensor& in, std::span<const Part> send, const Tensor& out,
                           std::span<const Part> receive, const Communicator& group) {
  MCPP_CHECK(in.dtype() == out.dtype(), "parts of ", name_of(in.dtype()), " are received as ", name_of(out.dtype()));
  check_parts(in, send, group);
  check_parts(out, receive, group);
  const auto own = static_cast<std::size_t>(group.rank());
  check_counts(send[own].count, group.rank(), receive[own].count, group.rank());
  std::vector<Part> ordered(receive.begin(), receive.end());
  std::erase_if(ordered, [](const Part& part) { return part.count == 0; });
  std::ranges::sort(ordered, {}, &Part::first);
  for (std::size_t i = 1; i < ordered.size(); ++i)
    MCPP_CHECK(ordered[i - 1].first + ordered[i - 1].count <= ordered[i].first, "received parts overlap at element ",
               ordered[i].first);
}

inline void check_color(int color) {
  MCPP_CHECK(color >= 0, "split: color ", color, " must not be negative");
}

inline void check_peer(int peer, const Communicator& group) {
  MCPP_CHECK(peer >= 0 && peer < group.size() && peer != group.rank(), "rank ", group.rank(), " of ", group.size(),
             " cannot exchange a message with rank ", peer);
}

inline void check_root(int root, const Communicator& group) {
  MCPP_CHECK(root >= 0 && root < group.size(), "root ", root, " is not one of ", group.size(), " ranks");
}

}  // namespace mcpp
