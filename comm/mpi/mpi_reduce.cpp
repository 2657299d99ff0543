#include "comm/mpi/mpi_reduce.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/integer_math.h"
#include "comm/copy_bytes.h"
#include "comm/mpi/transport/mpi_calls.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Receive buffer size: far more than the network holds in flight.
constexpr i64 kReceiveBufferBytes = i64{8} << 20;
/// For sums up to this size, redundant computation is cheaper than a second message round.
constexpr i64 kSmallBytes = 4096;
/// Part granularity in elements; keeps parts on cache line boundaries.
constexpr i64 kStep = 64;

template <class Byte, class F>
void for_each_chunk(std::span<Byte> bytes, const F& f) {
  constexpr std::size_t kMaxReducedBytes = kEagerBytes;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kMaxReducedBytes, bytes.size())))
    f(bytes.first(std::min(kMaxReducedBytes, bytes.size())));
}

}  // namespace

PairwiseReducer::PairwiseReducer(const MpiComm& comm, WaitPolicy wait_policy)
    : comm_(comm.get()), rank_(comm.rank()), size_(comm.size()), wait_policy_(std::move(wait_policy)) {}

i64 PairwiseReducer::chunk(DType dtype) const {
  return std::max(kStep, kReceiveBufferBytes / size_of(dtype) / size_ / kStep * kStep);
}

std::span<std::byte> PairwiseReducer::receive_buffer(int rank, i64 bytes) {
  receive_buffer_.resize(std::max(receive_buffer_.size(), static_cast<std::size_t>(size_ * bytes)));
  return std::span(receive_buffer_).subspan(static_cast<std::size_t>(rank * bytes), static_cast<std::size_t>(bytes));
}

/// Sends send_to(r) to each other rank r while receiving receive_from(r) from it. Either may be empty.
template <class To, class From>
void PairwiseReducer::swap(const To& send_to, const From& receive_from) {
  std::vector<MPI_Request> requests;
  for (int step = 1; step < size_; ++step) {  // staggered so that ranks start with different peers
    const int source = (rank_ + size_ - step) % size_, destination = (rank_ + step) % size_;
    const std::span<std::byte> in = receive_from(source);
    const std::span<const std::byte> out = send_to(destination);
    for_each_chunk(in, [&](std::span<std::byte> chunk) {
      check_mpi(MPI_Irecv(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, source, mpi_tag::kSum, comm_,
                          &requests.emplace_back()),
                "MPI_Irecv");
    });
    for_each_chunk(out, [&](std::span<const std::byte> chunk) {
      check_mpi(MPI_Isend(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, destination, mpi_tag::kSum, comm_,
                          &requests.emplace_back()),
                "MPI_Isend");
    });
  }
  wait_all(requests, wait_policy_);
}

/// Reduces the received parts and `own` in rank order. `out` may be `own`.
void PairwiseReducer::sum(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, i64 count) {
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(r == rank_ ? own : receive_buffer(r, count * size_of(dtype)).data());
  reduce(op, dtype, parts, out, count);
}

void PairwiseReducer::reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count) {
  const i64 item = size_of(dtype);
  for (i64 begin = 0; begin < count; begin += chunk(dtype)) {
    const i64 n = std::min(chunk(dtype), count - begin);
    const auto part = [&](int r) { return full + (r * count + begin) * item; };
    receive_buffer(0, n * item);  // resizes the buffer before taking addresses
    swap([&](int r) { return std::span(part(r), static_cast<std::size_t>(n * item)); },
         [&](int r) { return receive_buffer(r, n * item); });
    sum(ReduceOp::Sum, dtype, part(rank_), shard + begin * item, n);
  }
}

void PairwiseReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype);
  if (count * item <= kSmallBytes) return all_reduce_small(op, dtype, data, count);
  const i64 part_size = round_up(ceil_div(count, size_), kStep);  // the last parts may be smaller
  for (i64 begin = 0; begin < part_size; begin += chunk(dtype)) {
    const auto part = [&](int r) {
      const i64 end = std::min(count, (r + 1) * part_size), first = std::min(end, r * part_size + begin);
      const i64 last = std::min(end, first + chunk(dtype));
      return std::span(data + first * item, static_cast<std::size_t>((last - first) * item));
    };
    const std::span<std::byte> own = part(rank_);
    const auto own_bytes = static_cast<i64>(own.size());
    receive_buffer(0, own_bytes);  // resizes the buffer before taking addresses
    swap([&](int r) { return std::span<const std::byte>(part(r)); },
         [&](int r) { return receive_buffer(r, own_bytes); });
    sum(op, dtype, own.data(), own.data(), own_bytes / item);
    swap([&](int) { return std::span<const std::byte>(own); }, part);
  }
}

/// Every rank computes the full reduction.
void PairwiseReducer::all_reduce_small(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const std::span<std::byte> all(data, static_cast<std::size_t>(count * size_of(dtype)));
  const auto bytes = static_cast<i64>(all.size());
  receive_buffer(0, bytes);
  swap([&](int) { return std::span<const std::byte>(all); }, [&](int r) { return receive_buffer(r, bytes); });
  sum(op, dtype, data, data, count);
}

namespace {

/// Tag of results. Partial sums are tagged with the index of the run that receives them.
constexpr int kResultTag = 0;

}  // namespace

std::vector<NodeRun> runs_on_nodes(const std::vector<int>& nodes) {
  std::vector<NodeRun> runs;
  std::map<int, int> leader_of, seen;  // by node
  for (int r = 0; r < static_cast<int>(nodes.size()); ++r) {
    const int node = nodes[r];
    const int leader = leader_of.try_emplace(node, static_cast<int>(leader_of.size())).first->second;
    if (r == 0 || node != nodes[r - 1]) runs.push_back({.node = leader, .begin = r, .first = seen[node], .count = 0});
    ++runs.back().count;
    ++seen[node];
  }
  return runs;
}

InterNodeReducer::InterNodeReducer(const std::vector<NodeRun>& runs, const MpiComm& leaders, SharedWindow& window,
                                   const WaitPolicy& wait_policy)
    : runs_(runs), leaders_(leaders), window_(window), wait_policy_(wait_policy) {}

void InterNodeReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  const i64 item = size_of(dtype);
  run({.op = op,
       .dtype = dtype,
       .parts = 1,
       .copy_in = [=](std::byte* slot, i64 begin, i64 n) { copy_bytes(slot, data + begin * item, n * item); },
       .copy_out = [=](const std::byte* slot, i64 begin, i64 n) { copy_bytes(data + begin * item, slot, n * item); }},
      count);
}

void InterNodeReducer::reduce_scatter(int rank, int ranks, DType dtype, const std::byte* full, std::byte* shard,
                                      i64 count) {
  const i64 item = size_of(dtype);
  run({.op = ReduceOp::Sum,
       .dtype = dtype,
       .parts = ranks,
       .copy_in =
           [=](std::byte* slot, i64 begin, i64 n) {
             for (int r = 0; r < ranks; ++r)
               copy_bytes(slot + r * n * item, full + (r * count + begin) * item, n * item);
           },
       .copy_out = [=](const std::byte* slot, i64 begin,
                       i64 n) { copy_bytes(shard + begin * item, slot + rank * n * item, n * item); }},
      count);
}

void InterNodeReducer::run(const Operation& operation, i64 count) {
  const i64 max_elements = SharedWindow::elements_in_slot(size_of(operation.dtype), operation.parts);
  std::optional<Segment> last;
  for (i64 begin = 0; begin < count; begin += max_elements) {
    Segment segment = next_segment(begin, std::min(max_elements, count - begin));
    operation.copy_in(is_leader() ? own_.data() : window_.slot(window_.rank()), begin, segment.count);
    // Also ensures that the leader's slot, where results are stored, is no longer being read.
    window_.barrier();
    if (is_leader()) start(operation, segment, last ? &*last : nullptr);
    if (last) finish(operation, *last);
    last.emplace(std::move(segment));
    window_.next_round();
  }
  finish(operation, *last);
}

InterNodeReducer::Segment InterNodeReducer::next_segment(i64 begin, i64 count) {
  current_ = 1 - current_;
  Segment segment{.begin = begin, .count = count, .slot = window_.slot(0), .acc = accs_[current_], .results = {}};
  if (is_leader()) {
    own_.resize(SharedWindow::kSlotBytes);
    segment.results.emplace(leaders_, leader_position(), kResultTag, wait_policy_);
  }
  return segment;
}

/// Runs on leaders. Each chunk of the sum visits the runs in order; the leader of the last run gets the result.
void InterNodeReducer::start(const Operation& operation, Segment& segment, Segment* last) {
  // Elements sent together: few, so that nodes work on different chunks concurrently.
  const i64 width = size_of(operation.dtype), item = size_of(accumulator_of(operation.dtype));
  const i64 chunk = kEagerBytes / item, count = segment.count * operation.parts;
  const i64 part_bytes = operation.parts == 1 ? 0 : segment.count * width;
  const int me = leaders_.rank(), runs = static_cast<int>(runs_.size());
  segment.acc.resize(static_cast<std::size_t>(count * item));
  const auto chunks = static_cast<std::size_t>(ceil_div(count, chunk));
  std::vector<MPI_Request> arrived(chunks, MPI_REQUEST_NULL);
  segment.sent.assign(chunks, MPI_REQUEST_NULL);
  const auto receive = [&](i64 begin, int k) {  // for run k
    const i64 n = std::min(chunk, count - begin);
    check_mpi(MPI_Irecv(segment.acc.data() + begin * item, static_cast<int>(n * item), MPI_BYTE, runs_[k - 1].node, k,
                        leaders_.get(), &arrived[begin / chunk]),
              "MPI_Irecv");
  };
  // All receives of the first visit are posted up front to keep high-latency links busy.
  const auto first = static_cast<int>(std::ranges::find(runs_, me, &NodeRun::node) - runs_.begin());
  for (i64 begin = 0; first > 0 && begin < count; begin += chunk) receive(begin, first);
  for (i64 begin = 0; begin < count; begin += chunk) {
    const i64 n = std::min(chunk, count - begin);
    std::byte* acc = segment.acc.data() + begin * item;
    for (int k = first; k < runs; ++k) {
      if (runs_[k].node != me) continue;
      MPI_Request &receive_request = arrived[begin / chunk], &send_request = segment.sent[begin / chunk];
      wait_all({&send_request, 1}, wait_policy_);  // send of an earlier run of this node: its buffer is reused
      if (k > first) receive(begin, k);
      wait_all({&receive_request, 1}, wait_policy_);
      add_run(runs_[k], k == 0, operation, begin, acc, n);
      if (k + 1 < runs)
        check_mpi(MPI_Isend(acc, static_cast<int>(n * item), MPI_BYTE, runs_[k + 1].node, k + 1, leaders_.get(),
                            &send_request),
                  "MPI_Isend");
      else
        finish_reduction(operation.dtype, acc, segment.slot + begin * width, n);
    }
    submit_results(segment, begin * width, (begin + n) * width, part_bytes);
    if (!last || last->results->forward_received()) segment.results->forward_received();
  }
}

void InterNodeReducer::finish(const Operation& operation, Segment& segment) {
  if (is_leader()) {
    segment.results->finish();
    wait_all(segment.sent, wait_policy_);
  }
  window_.barrier();
  operation.copy_out(segment.slot, segment.begin, segment.count);
}

/// Results travel from the last node backwards, opposite to the partial sums, because links are full duplex.
ChainPosition InterNodeReducer::leader_position() const {
  const int nodes = leaders_.size(), me = leaders_.rank(), last = runs_.back().node;
  const int before = (me + nodes - 1) % nodes, after = (me + 1) % nodes;
  return {.first = last, .source = me == last ? -1 : after, .next = before == last ? -1 : before};
}

/// Submits bytes [begin, end) of the segment's results, which this node has finished.
void InterNodeReducer::submit_results(Segment& segment, i64 begin, i64 end, i64 part_bytes) const {
  const auto bytes = [&](i64 first, i64 last) {
    return std::span(segment.slot + first, static_cast<std::size_t>(std::max<i64>(0, last - first)));
  };
  if (part_bytes == 0) return segment.results->submit_to_all(bytes(begin, end));
  for (const NodeRun& run : runs_) {
    const i64 first = run.begin * part_bytes, last = first + run.count * part_bytes;
    segment.results->submit_to(run.node, bytes(std::max(begin, first), std::min(end, last)));
  }
}

void InterNodeReducer::add_run(const NodeRun& run, bool is_first, const Operation& operation, i64 begin, std::byte* acc,
                               i64 count) {
  for (int r = run.first; r < run.first + run.count; ++r) {
    const std::byte* part = (r == 0 ? own_.data() : window_.slot(r)) + begin * size_of(operation.dtype);
    if (is_first && r == run.first)
      start_reduction(operation.dtype, part, acc, count);
    else
      continue_reduction(operation.op, operation.dtype, part, acc, count);
  }
}

namespace {

/// For sums up to this size, redundant computation is cheaper than a second barrier.
constexpr i64 kOneBarrierBytes = 4096;

}  // namespace

NodeReducer::NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy)
    : rank_(comm.rank()), size_(comm.size()), runs_(runs_on_nodes(nodes)), wait_policy_(std::move(wait_policy)) {
  const int leaders = std::ranges::max(runs_, {}, &NodeRun::node).node + 1;
  if (leaders == size_) {
    pairwise_reducer_ = std::make_unique<PairwiseReducer>(comm, wait_policy_);
    return;
  }
  node_ = MpiComm::split(comm.get(), nodes[rank_], rank_);
  const bool is_leader = node_.rank() == 0;
  if (!is_single_node()) leaders_ = MpiComm::split(comm.get(), is_leader ? 0 : MPI_UNDEFINED, rank_);
  window_ = std::make_unique<SharedWindow>(node_, wait_policy_);
  if (!is_single_node())
    inter_node_reducer_ = std::make_unique<InterNodeReducer>(runs_, leaders_, *window_, wait_policy_);
}

void NodeReducer::all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  if (pairwise_reducer_) return pairwise_reducer_->all_reduce(op, dtype, data, count);
  if (inter_node_reducer_) return inter_node_reducer_->all_reduce(op, dtype, data, count);
  const i64 item = size_of(dtype), segment = SharedWindow::kSlotBytes / item;
  for (i64 begin = 0; begin < count; begin += segment) {
    const i64 n = std::min(segment, count - begin);
    std::byte* part = data + begin * item;
    if (n * item <= kOneBarrierBytes)
      reduce_redundantly(op, dtype, part, n);
    else
      reduce_by_chunks(op, dtype, part, n);
    window_->next_round();
  }
}

void NodeReducer::reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count) {
  if (pairwise_reducer_) return pairwise_reducer_->reduce_scatter(dtype, full, shard, count);
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

/// All-reduces a segment on one node. Every rank computes the full reduction.
void NodeReducer::reduce_redundantly(ReduceOp op, DType dtype, std::byte* data, i64 count) {
  copy_bytes(window_->slot(rank_), data, count * size_of(dtype));
  window_->barrier();
  std::vector<const void*> parts;
  for (int r = 0; r < size_; ++r) parts.push_back(window_->slot(r));
  reduce(op, dtype, parts, data, count);
}

/// All-reduces a segment on one node. Rank r reduces chunk r: it reads its own contribution from `data` and the other
/// contributions from the slots of the other ranks, and leaves the result in its own slot.
void NodeReducer::reduce_by_chunks(ReduceOp op, DType dtype, std::byte* data, i64 count) {
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
