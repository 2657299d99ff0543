#include "megatron_cpp/bench/bench_comm.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Send and receive buffers of one side for one size.
struct CommBuffers {
  CommBuffers(Device& device, i64 count, int ranks)
      : full(filled(count, device)), other(filled(count, device)), shard(filled(count / ranks, device)) {}

  static Tensor filled(i64 count, Device& device) {
    Tensor t = Tensor::empty({count}, DType::F32, device, MemoryClass::Grads);
    std::fill_n(t.data<float>(), count, 1e-3F);
    return t;
  }

  Tensor full, other, shard;
};

struct CommOperation {
  std::string_view name;
  void (*run)(Communicator& group, CommBuffers& buffers);
  double share = 1;  ///< fraction of the time that counts
};

/// Exchanges even parts, half of which are cut in half.
void exchange_uneven(Communicator& group, CommBuffers& buffers) {
  const i64 even = buffers.full.numel() / group.size();
  std::vector<Part> parts;
  for (int r = 0; r < group.size(); ++r) parts.push_back({r * even, (r + group.rank()) % 2 == 0 ? even : even / 2});
  group.all_to_all_v(buffers.full, parts, buffers.other, parts).wait();
}

void ping_pong(Communicator& group, CommBuffers& buffers) {
  const int rank = group.rank(), last = group.size() - 1;
  Work sent;
  if (rank == 0) sent = group.send(buffers.full, last);
  if (rank == 0 || rank == last) group.recv(buffers.other, last - rank).wait();
  if (rank == last) sent = group.send(buffers.full, 0);
  sent.wait();
}

constexpr std::array kOperations{
    CommOperation{"all_reduce", [](Communicator& g, CommBuffers& b) { g.all_reduce(b.full, ReduceOp::Sum).wait(); }},
    CommOperation{"all_gather", [](Communicator& g, CommBuffers& b) { g.all_gather(b.shard, b.full).wait(); }},
    CommOperation{"reduce_scatter", [](Communicator& g, CommBuffers& b) { g.reduce_scatter(b.full, b.shard).wait(); }},
    CommOperation{"broadcast", [](Communicator& g, CommBuffers& b) { g.broadcast(b.full, 0).wait(); }},
    CommOperation{"all_to_all", [](Communicator& g, CommBuffers& b) { g.all_to_all(b.full, b.other).wait(); }},
    CommOperation{"all_to_all_v", exchange_uneven},
    CommOperation{"send_recv", ping_pong, 0.5},
};

/// Timings of one side on this rank, in seconds per call.
class Stopwatch {
 public:
  Stopwatch(const CommSide& side, const CommOperation& operation, i64 count)
      : group_(side.group), operation_(operation), buffers_(side.device, count, side.group.size()) {}

  void time_round(int repeats) {
    operation_.run(group_, buffers_);
    for (int k = 0; k < repeats; ++k) times_.push_back(time_one());
  }

  /// Returns the median over runs, each as long as on its slowest rank. Collective.
  double median_of_slowest(Communicator& group, Device& device) const {
    Tensor slowest = Tensor::empty({static_cast<i64>(times_.size())}, DType::F64, device);
    std::copy(times_.begin(), times_.end(), slowest.data<double>());
    group.all_reduce(slowest, ReduceOp::Max).wait();
    double* begin = slowest.data<double>();
    double* middle = begin + times_.size() / 2;
    std::nth_element(begin, middle, begin + times_.size());
    return *middle;
  }

 private:
  double time_one() {
    // Enough calls to make clock resolution and start-up skew negligible.
    const i64 calls = std::clamp<i64>((i64{256} << 10) / std::max<i64>(buffers_.full.bytes(), 1), 1, 64);
    group_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (i64 k = 0; k < calls; ++k) operation_.run(group_, buffers_);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return elapsed.count() * operation_.share / static_cast<double>(calls);
  }

  Communicator& group_;
  const CommOperation& operation_;
  CommBuffers buffers_;
  std::vector<double> times_;
};

CommRow bench_operation(const CommSide& ours, const CommSide& baseline, const CommOperation& operation, i64 count,
                        const CommTiming& timing) {
  Stopwatch our_times(ours, operation, count), baseline_times(baseline, operation, count);
  for (int round = 0; round < timing.rounds; ++round) {
    our_times.time_round(timing.repeats);
    baseline_times.time_round(timing.repeats);
  }
  return {.operation = operation.name,
          .bytes = count * size_of(DType::F32),
          .seconds = our_times.median_of_slowest(ours.group, ours.device),
          .baseline_seconds = baseline_times.median_of_slowest(ours.group, ours.device)};
}

}  // namespace

std::vector<std::string> comm_operations() {
  std::vector<std::string> names;
  for (const CommOperation& operation : kOperations) names.emplace_back(operation.name);
  return names;
}

std::vector<CommRow> bench_comm(CommSide ours, CommSide baseline, const CommTiming& timing) {
  const int ranks = ours.group.size();
  MCPP_CHECK(ranks >= 2 && baseline.group.size() == ranks, "groups of ", ranks, " and ", baseline.group.size(),
             " ranks to time");
  std::vector<CommRow> rows;
  for (const CommOperation& operation : kOperations) {
    if (!timing.operations.empty() && std::ranges::find(timing.operations, operation.name) == timing.operations.end())
      continue;
    for (i64 bytes = timing.smallest; bytes <= timing.largest; bytes *= 4) {
      const i64 count = bytes / size_of(DType::F32) / ranks * ranks;
      rows.push_back(bench_operation(ours, baseline, operation, count, timing));
    }
  }
  return rows;
}

std::string comm_table(const std::vector<CommRow>& rows) {
  std::string text = str(pad_right("", 16), pad_left("size", 10), pad_left("us", 12), pad_left("MPI us", 12),
                         pad_left("ratio", 8), pad_left("GB/s", 8), "\n");
  for (const CommRow& row : rows) {
    text += str(pad_right(row.operation, 16), pad_left(human_bytes(static_cast<double>(row.bytes)), 10),
                pad_left(fixed(row.seconds * 1e6, 2), 12), pad_left(fixed(row.baseline_seconds * 1e6, 2), 12),
                pad_left(fixed(row.ratio(), 2), 8), pad_left(fixed(row.bandwidth() / 1e9, 2), 8), "\n");
  }
  return text;
}

}  // namespace mcpp
