#include "comm/mpi/inter_node_reducer.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/integer_math.h"
#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
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
       .fill = [=](std::byte* slot, i64 begin, i64 n) { copy_bytes(slot, data + begin * item, n * item); },
       .empty = [=](const std::byte* slot, i64 begin, i64 n) { copy_bytes(data + begin * item, slot, n * item); }},
      count);
}

void InterNodeReducer::reduce_scatter(int rank, int ranks, DType dtype, const std::byte* full, std::byte* shard,
                                      i64 count) {
  const i64 item = size_of(dtype);
  run({.op = ReduceOp::Sum,
       .dtype = dtype,
       .parts = ranks,
       .fill =
           [=](std::byte* slot, i64 begin, i64 n) {
             for (int r = 0; r < ranks; ++r)
               copy_bytes(slot + r * n * item, full + (r * count + begin) * item, n * item);
           },
       .empty = [=](const std::byte* slot, i64 begin,
                    i64 n) { copy_bytes(shard + begin * item, slot + rank * n * item, n * item); }},
      count);
}

void InterNodeReducer::run(const Operation& operation, i64 count) {
  const i64 max_elements = SharedWindow::elements_in_slot(size_of(operation.dtype), operation.parts);
  std::optional<Segment> last;
  for (i64 begin = 0; begin < count; begin += max_elements) {
    Segment segment = next_segment(begin, std::min(max_elements, count - begin));
    operation.fill(is_leader() ? own_.data() : window_.slot(window_.rank()), begin, segment.count);
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
  turn_ = 1 - turn_;
  Segment segment{.begin = begin, .count = count, .slot = window_.slot(0), .acc = accs_[turn_], .results = {}};
  if (is_leader()) {
    own_.resize(SharedWindow::kSlotBytes);
    segment.results.emplace(leaders_, leader_position(), kResultTag, wait_policy_);
  }
  return segment;
}

/// Runs on leaders. Each piece of the sum visits the runs in order; the leader of the last run gets the result.
void InterNodeReducer::start(const Operation& operation, Segment& segment, Segment* last) {
  // Elements sent together: few, so that nodes work on different pieces concurrently.
  const i64 width = size_of(operation.dtype), item = size_of(accumulator_of(operation.dtype));
  const i64 piece = kPromptBytes / item, count = segment.count * operation.parts;
  const i64 part_bytes = operation.parts == 1 ? 0 : segment.count * width;
  const int me = leaders_.rank(), runs = static_cast<int>(runs_.size());
  segment.acc.resize(static_cast<std::size_t>(count * item));
  const auto pieces = static_cast<std::size_t>(ceil_div(count, piece));
  std::vector<MPI_Request> arrived(pieces, MPI_REQUEST_NULL);
  segment.sent.assign(pieces, MPI_REQUEST_NULL);
  const auto receive = [&](i64 begin, int k) {  // for run k
    const i64 n = std::min(piece, count - begin);
    check_mpi(MPI_Irecv(segment.acc.data() + begin * item, static_cast<int>(n * item), MPI_BYTE, runs_[k - 1].node, k,
                        leaders_.get(), &arrived[begin / piece]),
              "MPI_Irecv");
  };
  // All receives of the first visit are posted at once to keep high-latency links busy.
  const auto first = static_cast<int>(std::ranges::find(runs_, me, &NodeRun::node) - runs_.begin());
  for (i64 begin = 0; first > 0 && begin < count; begin += piece) receive(begin, first);
  for (i64 begin = 0; begin < count; begin += piece) {
    const i64 n = std::min(piece, count - begin);
    std::byte* acc = segment.acc.data() + begin * item;
    for (int k = first; k < runs; ++k) {
      if (runs_[k].node != me) continue;
      MPI_Request &receive_request = arrived[begin / piece], &send_request = segment.sent[begin / piece];
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
  operation.empty(segment.slot, segment.begin, segment.count);
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

}  // namespace mcpp
