#include "comm/mpi/mpi_reduce.h"

#include <algorithm>
#include <map>

#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Elements of a partial sum that travel together: small, so that nodes work on different pieces at the same time.
constexpr i64 kPiece = 16384;
constexpr int kPartialSum = 1, kSum = 2;  // tags
/// Sums this small cost less than a second barrier to share them.
constexpr i64 kSmallBytes = 4096;

}  // namespace

NodeReducer::NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, bool may_spin)
    : rank_(comm.rank()), size_(comm.size()), node_(MpiComm::split(comm.get(), nodes[rank_], rank_)) {
  std::map<int, int> leader_of, seen;  // by node; leaders are numbered by their ranks
  for (int rank = 0, last = -1; rank < size_; ++rank) {
    const int node = nodes[static_cast<std::size_t>(rank)];
    const int leader = leader_of.try_emplace(node, static_cast<int>(leader_of.size())).first->second;
    if (node != last) runs_.push_back({.node = leader, .first = seen[node], .count = 0, .begin = rank});
    ++runs_.back().count;
    ++seen[node];
    last = node;
  }
  const bool is_leader = node_.rank() == 0;
  if (!on_one_node()) leaders_ = MpiComm::split(comm.get(), is_leader ? 0 : MPI_UNDEFINED, rank_);
  window_ = std::make_unique<SharedWindow>(node_, may_spin);
}

void NodeReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype), segment = SharedWindow::kSlotBytes / item;
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    std::byte* part = data + begin * item;
    if (on_one_node() && n * item <= kSmallBytes) {
      reduce_alone(op, dtype, part, n);
    } else if (on_one_node()) {
      share_sums(op, dtype, part, n);
    } else {
      copy_bytes(window_->slot(window_->rank()), part, n * item);
      sum_in_slot_0(op, dtype, n, 0);
      copy_bytes(part, window_->slot(0), n * item);
    }
    window_->next_round();
  }
}

void NodeReducer::reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count) {
  // A slot holds a segment of every rank's part, one after another.
  const i64 item = size_of(dtype), segment = SharedWindow::kSlotBytes / item / size_;
  MCPP_CHECK(segment > 0, size_, " ranks are too many for the shared memory window");
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    const auto part = [&](int r) { return full + (r * count + begin) * item; };
    std::byte* slot = window_->slot(window_->rank());
    for (int r = 0; r < size_; ++r)
      if (r != rank_ || !on_one_node()) copy_bytes(slot + r * n * item, part(r), n * item);
    if (on_one_node()) {
      window_->barrier();
      std::vector<const void*> parts;
      for (int r = 0; r < size_; ++r) parts.push_back(r == rank_ ? part(r) : window_->slot(r) + rank_ * n * item);
      reduce(ReduceOp::Sum, dtype, parts, shard + begin * item, n);
    } else {
      sum_in_slot_0(ReduceOp::Sum, dtype, n * size_, n);
      copy_bytes(shard + begin * item, window_->slot(0) + rank_ * n * item, n * item);
    }
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

/// All-reduces a segment on one node. Every rank does all of it.
void NodeReducer::reduce_alone(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  copy_bytes(window_->slot(rank_), data, count * size_of(dtype));
  window_->barrier();
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(window_->slot(r));
  reduce(op, dtype, parts, data, count);
}

/// All-reduces a segment on one node. Rank r does chunk r: it reads its own part of it from `data` and those of the
/// others from their slots, and leaves the result in its own slot.
void NodeReducer::share_sums(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype);
  const auto chunk = [&](int r) { return count * r / size_ * item; };  // where it begins, in bytes
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

/// Between nodes: leaves in slot 0 of each node the reduction of those of the `count` elements in all slots that are
/// its ranks'.
void NodeReducer::sum_in_slot_0(ReduceOp op, DType dtype, i64 count, i64 of_rank) {
  window_->barrier();
  if (window_->rank() == 0) reduce_over_nodes(op, dtype, count, of_rank);
  window_->barrier();
}

/// On leaders. Each piece of the sum visits the runs of ranks in order, and the leader of the last run tells the
/// result: to all at the end, or, while it sums what follows, to those whose ranks it is for.
void NodeReducer::reduce_over_nodes(ReduceOp op, DType dtype, i64 count, i64 of_rank) {
  const i64 item = size_of(accumulator_of(dtype));
  const int me = leaders_.rank(), runs = static_cast<int>(runs_.size());
  acc_.resize(static_cast<std::size_t>(count * item));
  std::vector<MPI_Request> sent((count + kPiece - 1) / kPiece, MPI_REQUEST_NULL), told;
  for (i64 begin = 0; begin < count; begin += kPiece) {
    const i64 n = std::min(kPiece, count - begin);
    const int bytes = static_cast<int>(n * item);
    std::byte* acc = acc_.data() + begin * item;
    for (int k = 0; k < runs; ++k) {
      if (runs_[k].node != me) continue;
      MPI_Request& request = sent[begin / kPiece];
      wait_all({&request, 1});  // of an earlier run of this node, whose memory is used again
      if (k > 0) {
        check_mpi(MPI_Irecv(acc, bytes, MPI_BYTE, runs_[k - 1].node, kPartialSum, leaders_.get(), &request),
                  "MPI_Irecv");
        wait_all({&request, 1});
      }
      add_run(runs_[k], k == 0, op, dtype, begin, acc, n);
      if (k + 1 < runs)
        check_mpi(MPI_Isend(acc, bytes, MPI_BYTE, runs_[k + 1].node, kPartialSum, leaders_.get(), &request),
                  "MPI_Isend");
      else
        finish_reduction(dtype, acc, window_->slot(0) + begin * size_of(dtype), n);
    }
    if (of_rank > 0) start_telling(dtype, begin, begin + n, of_rank, told);
  }
  wait_all(sent);
  if (of_rank == 0)
    check_mpi(MPI_Ibcast(window_->slot(0), static_cast<int>(count * size_of(dtype)), MPI_BYTE, runs_.back().node,
                         leaders_.get(), &told.emplace_back(MPI_REQUEST_NULL)),
              "MPI_Ibcast");
  wait_all(told);
}

/// Of elements [begin, end), which this node has added its part to: between the leader that has their sums and those of
/// their ranks.
void NodeReducer::start_telling(DType dtype, i64 begin, i64 end, i64 of_rank, std::vector<MPI_Request>& told) {
  const int me = leaders_.rank(), last = runs_.back().node;
  for (const Run& run : runs_) {
    const i64 first = std::max(begin, run.begin * of_rank), past = std::min(end, (run.begin + run.count) * of_rank);
    if (run.node == last || first >= past || (me != last && me != run.node)) continue;
    std::byte* sums = window_->slot(0) + first * size_of(dtype);
    const int bytes = static_cast<int>((past - first) * size_of(dtype));
    MPI_Request* request = &told.emplace_back(MPI_REQUEST_NULL);
    if (me == last)
      check_mpi(MPI_Isend(sums, bytes, MPI_BYTE, run.node, kSum, leaders_.get(), request), "MPI_Isend");
    else
      check_mpi(MPI_Irecv(sums, bytes, MPI_BYTE, last, kSum, leaders_.get(), request), "MPI_Irecv");
  }
}

void NodeReducer::add_run(const Run& run, bool is_first, ReduceOp op, DType dtype, i64 begin, std::byte* acc,
                          i64 count) {
  for (int r = run.first; r < run.first + run.count; ++r) {
    const std::byte* part = window_->slot(r) + begin * size_of(dtype);
    if (is_first && r == run.first)
      start_reduction(dtype, part, acc, count);
    else
      continue_reduction(op, dtype, part, acc, count);
  }
}

}  // namespace mcpp
