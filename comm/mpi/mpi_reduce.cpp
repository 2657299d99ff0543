#include "comm/mpi/mpi_reduce.h"

#include <algorithm>

#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// For sums up to this size, redundant computation is cheaper than a second barrier.
constexpr i64 kOneBarrierBytes = 4096;

}  // namespace

NodeReducer::NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy)
    : rank_(comm.rank()), size_(comm.size()), runs_(runs_on_nodes(nodes)), wait_policy_(std::move(wait_policy)) {
  const int leaders = std::ranges::max(runs_, {}, &NodeRun::node).node + 1;
  if (leaders == size_) {
    exchange_ = std::make_unique<PairwiseReducer>(comm, wait_policy_);
    return;
  }
  node_ = MpiComm::split(comm.get(), nodes[rank_], rank_);
  const bool is_leader = node_.rank() == 0;
  if (!on_one_node()) leaders_ = MpiComm::split(comm.get(), is_leader ? 0 : MPI_UNDEFINED, rank_);
  window_ = std::make_unique<SharedWindow>(node_, wait_policy_);
  if (!on_one_node()) inter_node_reducer_ = std::make_unique<InterNodeReducer>(runs_, leaders_, *window_, wait_policy_);
}

void NodeReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  if (exchange_) return exchange_->all_reduce(op, dtype, data, count);
  if (inter_node_reducer_) return inter_node_reducer_->all_reduce(op, dtype, data, count);
  const i64 item = size_of(dtype), segment = SharedWindow::kSlotBytes / item;
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    std::byte* part = data + begin * item;
    if (n * item <= kOneBarrierBytes)
      reduce_alone(op, dtype, part, n);
    else
      share_sums(op, dtype, part, n);
    window_->next_round();
  }
}

void NodeReducer::reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count) {
  if (exchange_) return exchange_->reduce_scatter(dtype, full, shard, count);
  if (inter_node_reducer_) return inter_node_reducer_->reduce_scatter(rank_, size_, dtype, full, shard, count);
  // A slot holds one segment of every rank's part, consecutively.
  const i64 item = size_of(dtype), segment = SharedWindow::elements_in_slot(item, size_);
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    const auto part = [&](int r) { return full + (r * count + begin) * item; };
    for (int r = 0; r < size_; ++r)
      if (r != rank_) copy_bytes(window_->slot(rank_) + r * n * item, part(r), n * item);
    window_->barrier();
    std::vector<const void*> parts;
    for (int r = 0; r < size_; ++r) parts.push_back(r == rank_ ? part(r) : window_->slot(r) + rank_ * n * item);
    reduce(ReduceOp::Sum, dtype, parts, shard + begin * item, n);
    window_->next_round();
  }
}

void NodeReducer::all_gather(const std::byte* shard, std::byte* full, i64 bytes) {
  for (i64 begin = 0; begin < bytes; begin += SharedWindow::kSlotBytes) {
    const i64 n = std::min(SharedWindow::kSlotBytes, bytes - begin);
    copy_bytes(window_->slot(rank_), shard + begin, n);
    window_->barrier();
    for (int r = 0; r < size_; ++r) {
      if (r == rank_)
        copy_bytes(full + r * bytes + begin, shard + begin, n);
      else
        copy_bytes(full + r * bytes + begin, window_->slot(r), n);
    }
    window_->next_round();
  }
}

void NodeReducer::broadcast(std::byte* data, i64 bytes, int root) {
  for (i64 begin = 0; begin < bytes; begin += SharedWindow::kSlotBytes) {
    const i64 n = std::min(SharedWindow::kSlotBytes, bytes - begin);
    if (rank_ == root) copy_bytes(window_->slot(root), data + begin, n);
    window_->barrier();
    if (rank_ != root) copy_bytes(data + begin, window_->slot(root), n);
    window_->next_round();
  }
}

void NodeReducer::all_to_all(const std::byte* in, std::byte* out, i64 bytes) {
  const i64 segment = SharedWindow::kSlotBytes / size_;
  for (i64 begin = 0; begin < bytes; begin += segment) {
    const i64 n = std::min(segment, bytes - begin);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) copy_bytes(window_->slot(rank_) + r * n, in + r * bytes + begin, n);
    }
    window_->barrier();
    for (int r = 0; r < size_; ++r) {
      const std::byte* part = r == rank_ ? in + r * bytes + begin : window_->slot(r) + rank_ * n;
      copy_bytes(out + r * bytes + begin, part, n);
    }
    window_->next_round();
  }
}

/// All-reduces a segment on one node. Every rank computes the whole reduction.
void NodeReducer::reduce_alone(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  copy_bytes(window_->slot(rank_), data, count * size_of(dtype));
  window_->barrier();
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(window_->slot(r));
  reduce(op, dtype, parts, data, count);
}

/// All-reduces a segment on one node. Rank r reduces chunk r: it reads its own part from `data` and the others from
/// their slots, and leaves the result in its own slot.
void NodeReducer::share_sums(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype);
  const auto chunk = [&](int r) { return count * r / size_ * item; };  // offset in bytes
  const i64 begin = chunk(rank_), end = chunk(rank_ + 1);
  std::byte* own = window_->slot(rank_);
  copy_bytes(own, data, begin);
  copy_bytes(own + end, data + end, count * item - end);
  window_->barrier();
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back((r == rank_ ? data : window_->slot(r)) + begin);
  reduce(op, dtype, parts, own + begin, (end - begin) / item);
  window_->barrier();
  for (int r = 0; r < size_; ++r) copy_bytes(data + chunk(r), window_->slot(r) + chunk(r), chunk(r + 1) - chunk(r));
}

}  // namespace mcpp
