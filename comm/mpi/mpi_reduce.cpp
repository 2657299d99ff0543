#include "comm/mpi/mpi_reduce.h"

#include <algorithm>
#include <map>

#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Of results; partial sums have the number of the run that they go to.
constexpr int kResultTag = 0;
/// Sums this small cost less than a second barrier to share them.
constexpr i64 kOneBarrierBytes = 4096;

}  // namespace

NodeReducer::NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, Patience patience)
    : rank_(comm.rank()), size_(comm.size()), patience_(std::move(patience)) {
  std::map<int, int> leader_of, seen;  // by node; leaders are numbered by their ranks
  for (int r = 0; r < size_; ++r) {
    const int node = nodes[r];
    const int leader = leader_of.try_emplace(node, static_cast<int>(leader_of.size())).first->second;
    if (r == 0 || node != nodes[r - 1]) runs_.push_back({.node = leader, .begin = r, .first = seen[node], .count = 0});
    ++runs_.back().count;
    ++seen[node];
  }
  if (static_cast<int>(leader_of.size()) == size_) {
    exchange_ = std::make_unique<RankExchange>(comm, patience_);
    return;
  }
  node_ = MpiComm::split(comm.get(), nodes[rank_], rank_);
  const bool is_leader = node_.rank() == 0;
  if (!on_one_node()) leaders_ = MpiComm::split(comm.get(), is_leader ? 0 : MPI_UNDEFINED, rank_);
  window_ = std::make_unique<SharedWindow>(node_, patience_);
}

void NodeReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  if (exchange_) return exchange_->all_reduce(op, dtype, data, count);
  const i64 item = size_of(dtype), segment = SharedWindow::kSlotBytes / item;
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    std::byte* part = data + begin * item;
    if (on_one_node() && n * item <= kOneBarrierBytes) {
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
  if (exchange_) return exchange_->reduce_scatter(dtype, full, shard, count);
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
      sum_in_slot_0(ReduceOp::Sum, dtype, n * size_, n * item);
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

/// Between nodes: leaves in slot 0 of each node the reduction of the `count` elements in all slots. part_bytes: of the
/// part of each rank, one after another, which only its node needs; 0: all need all.
void NodeReducer::sum_in_slot_0(ReduceOp op, DType dtype, i64 count, i64 part_bytes) {
  window_->barrier();
  if (window_->rank() == 0) {
    PieceChain results(leaders_, place_of_leader(), kResultTag, patience_);
    reduce_over_nodes(op, dtype, count, part_bytes, results);
    results.finish();
  }
  window_->barrier();
}

/// On leaders. Each piece of the sum visits the runs of ranks in order; the leader of the last run has the result.
void NodeReducer::reduce_over_nodes(ReduceOp op, DType dtype, i64 count, i64 part_bytes, PieceChain& results) {
  // Elements that travel together: few, so that nodes work on different pieces at the same time.
  const i64 item = size_of(accumulator_of(dtype)), piece = kPromptBytes / item;
  const int me = leaders_.rank(), runs = static_cast<int>(runs_.size());
  acc_.resize(static_cast<std::size_t>(count * item));
  const auto pieces = static_cast<std::size_t>((count + piece - 1) / piece);
  std::vector<MPI_Request> arrived(pieces, MPI_REQUEST_NULL), sent(pieces, MPI_REQUEST_NULL);
  const auto receive = [&](i64 begin, int k) {  // for run k
    const i64 n = std::min(piece, count - begin);
    check_mpi(MPI_Irecv(acc_.data() + begin * item, static_cast<int>(n * item), MPI_BYTE, runs_[k - 1].node, k,
                        leaders_.get(), &arrived[begin / piece]),
              "MPI_Irecv");
  };
  // All that come for the first time may come at once: on a long way there is room for many.
  const auto first = static_cast<int>(std::ranges::find(runs_, me, &Run::node) - runs_.begin());
  for (i64 begin = 0; first > 0 && begin < count; begin += piece) receive(begin, first);
  for (i64 begin = 0; begin < count; begin += piece) {
    const i64 n = std::min(piece, count - begin);
    std::byte* acc = acc_.data() + begin * item;
    for (int k = first; k < runs; ++k) {
      if (runs_[k].node != me) continue;
      MPI_Request &here = arrived[begin / piece], &away = sent[begin / piece];
      wait_all({&away, 1}, patience_);  // of an earlier run of this node, whose memory is used again
      if (k > first) receive(begin, k);
      wait_all({&here, 1}, patience_);
      add_run(runs_[k], k == 0, op, dtype, begin, acc, n);
      if (k + 1 < runs)
        check_mpi(MPI_Isend(acc, static_cast<int>(n * item), MPI_BYTE, runs_[k + 1].node, k + 1, leaders_.get(), &away),
                  "MPI_Isend");
      else
        finish_reduction(dtype, acc, window_->slot(0) + begin * size_of(dtype), n);
    }
    pass_on(results, begin * size_of(dtype), (begin + n) * size_of(dtype), part_bytes);
    results.hand_on();
  }
  wait_all(sent, patience_);
}

/// Results go from the node that has them to the one before it, and so on: against the way of partial sums, as links
/// carry both at once.
ChainPlace NodeReducer::place_of_leader() const {
  const int nodes = leaders_.size(), me = leaders_.rank(), last = runs_.back().node;
  const int before = (me + nodes - 1) % nodes, after = (me + 1) % nodes;
  return {.first = last, .source = me == last ? -1 : after, .next = before == last ? -1 : before};
}

/// This node is done with bytes [begin, end) of the sums in slot 0.
void NodeReducer::pass_on(PieceChain& results, i64 begin, i64 end, i64 part_bytes) const {
  const auto bytes = [&](i64 first, i64 last) {
    return std::span(window_->slot(0) + first, static_cast<std::size_t>(std::max<i64>(0, last - first)));
  };
  if (part_bytes == 0) return results.pass_to_all(bytes(begin, end));
  for (const Run& run : runs_) {
    const i64 first = run.begin * part_bytes, last = first + run.count * part_bytes;
    results.pass_to(run.node, bytes(std::max(begin, first), std::min(end, last)));
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
