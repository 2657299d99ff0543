#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/number_format.h"
#include "base/strings.h"
#include "comm/checks.h"
#include "comm/mpi/transport/mpi_calls.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/memory_check.h"

namespace mcpp {
namespace {

MpiComm copy_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return MpiComm(copy);
}

/// Counts and displacements in bytes as MPI expects them.
struct IntParts {
  IntParts(std::span<const Part> parts, i64 item) {
    for (const Part& part : parts) {
      counts.push_back(static_cast<int>(part.count * item));
      firsts.push_back(static_cast<int>(part.first * item));
    }
  }
  std::vector<int> counts, firsts;
};

/// MPI's own collectives behind the Communicator interface, as a baseline. Every operation is one blocking MPI call on
/// the tensors as they are: sums are fp32 in MPI's order, a send may block on its receive, and tensors are limited to
/// 2^31 - 1 bytes.
class MpiBaseline final : public Communicator {
 public:
  explicit MpiBaseline(MpiComm comm) : comm_(std::move(comm)), rank_(comm_.rank()), size_(comm_.size()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    MCPP_CHECK(t.dtype() == DType::F32 && op == ReduceOp::Sum, "the baseline supports only fp32 sums");
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, t.raw(), count(t), MPI_FLOAT, MPI_SUM, comm_.get()), "MPI_Allreduce");
    return {};
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    check_shard(shard, full, *this);
    check_mpi(MPI_Allgather(shard.raw(), bytes(shard), MPI_BYTE, full.raw(), bytes(shard), MPI_BYTE, comm_.get()),
              "MPI_Allgather");
    return {};
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    check_shard(shard, full, *this);
    MCPP_CHECK(full.dtype() == DType::F32, "the baseline supports only fp32 sums");
    check_mpi(MPI_Reduce_scatter_block(full.raw(), shard.raw(), count(shard), MPI_FLOAT, MPI_SUM, comm_.get()),
              "MPI_Reduce_scatter_block");
    return {};
  }
  Work broadcast(Tensor& t, int root) override {
    check_root(root, *this);
    check_mpi(MPI_Bcast(t.raw(), bytes(t), MPI_BYTE, root, comm_.get()), "MPI_Bcast");
    return {};
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    check_exchange(in, out, *this);
    const int part = bytes(in) / size_;
    check_mpi(MPI_Alltoall(in.raw(), part, MPI_BYTE, out.raw(), part, MPI_BYTE, comm_.get()), "MPI_Alltoall");
    return {};
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_exchange(in, send, out, receive, *this);
    const IntParts from(send, size_of(in.dtype())), to(receive, size_of(in.dtype()));
    check_mpi(MPI_Alltoallv(in.raw(), from.counts.data(), from.firsts.data(), MPI_BYTE, out.raw(), to.counts.data(),
                            to.firsts.data(), MPI_BYTE, comm_.get()),
              "MPI_Alltoallv");
    return {};
  }
  Work send(const Tensor& t, int destination) override {
    check_peer(destination, *this);
    check_mpi(MPI_Send(t.raw(), bytes(t), MPI_BYTE, destination, 0, comm_.get()), "MPI_Send");
    return {};
  }
  Work recv(Tensor& t, int source) override {
    check_peer(source, *this);
    check_mpi(MPI_Recv(t.raw(), bytes(t), MPI_BYTE, source, 0, comm_.get(), MPI_STATUS_IGNORE), "MPI_Recv");
    return {};
  }
  void barrier() override { check_mpi(MPI_Barrier(comm_.get()), "MPI_Barrier"); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_color(color);
    return std::make_unique<MpiBaseline>(MpiComm::split(comm_.get(), color, key));
  }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static int count(const Tensor& t) { return static_cast<int>(t.numel()); }
  static int bytes(const Tensor& t) { return static_cast<int>(t.bytes()); }

  MpiComm comm_;
  int rank_, size_;
};

/// Send and receive buffers of one of the compared programs for one size.
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
  double share = 1;  ///< factor of the measured time
};

/// Runs an all-to-all in which every second part has half of the size.
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

/// Timings of one of the compared programs on this rank, in seconds per call.
class Stopwatch {
 public:
  Stopwatch(const BenchGroup& side, const CommOperation& operation, i64 count)
      : group_(side.group), operation_(operation), buffers_(side.device, count, side.group.size()) {}

  void time_round(int repeats) {
    operation_.run(group_, buffers_);
    for (int k = 0; k < repeats; ++k) times_.push_back(time_one());
  }

  /// Returns the median over runs of the time of the slowest rank. Collective.
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

CommRow bench_operation(const BenchGroup& ours, const BenchGroup& baseline, const CommOperation& operation, i64 count,
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

/// Returns the names of the benchmarked operations.
std::vector<std::string> comm_operations() {
  std::vector<std::string> names;
  for (const CommOperation& operation : kOperations) names.emplace_back(operation.name);
  return names;
}

}  // namespace

std::vector<CommRow> bench_comm(BenchGroup ours, BenchGroup baseline, const CommTiming& timing) {
  const int ranks = ours.group.size();
  MCPP_CHECK(ranks >= 2 && baseline.group.size() == ranks, "cannot compare groups of ", ranks, " and ",
             baseline.group.size(), " ranks");
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

// Command megatron_cpp bench comm: compares collectives of various sizes with MPI's under mpirun.

namespace {

constexpr double kLargest = 1e12;  // in bytes; four times this value does not overflow

struct BenchCommOptions {
  i64 smallest = CommTiming{}.smallest;
  i64 largest = CommTiming{}.largest;
  i64 rounds = CommTiming{}.rounds;
  i64 repeats = CommTiming{}.repeats;
  std::string operations;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("smallest", self.smallest, "bytes of the smallest tensor; each following tensor is four times larger",
          between(1 << 10, kLargest));
    visit("largest", self.largest, "bytes of the largest tensor", between(1 << 10, kLargest));
    visit("rounds", self.rounds, "number of rounds; each round measures both implementations once", between(1, 1e6));
    visit("repeats", self.repeats, "timed runs per round; the median over all rounds is reported", between(1, 1e6));
    visit("operations", self.operations, "operations to time, separated by commas; empty = all");
    visit("json", self.json, "print one JSON object instead of a table");
  }
};

std::vector<std::string> operations_of(const std::string& list) {
  if (list.empty()) return {};
  const std::vector<std::string> all = comm_operations(), chosen = split(list, ',');
  for (const std::string& name : chosen)
    check_input(std::ranges::find(all, name) != all.end(), "--operations: \"", name, "\": must be one of ",
                join(all, ", "));
  return chosen;
}

nlohmann::ordered_json as_json(const std::vector<CommRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const CommRow& row : rows) {
    list.push_back({{"operation", row.operation},
                    {"bytes", row.bytes},
                    {"seconds", row.seconds},
                    {"mpi_seconds", row.baseline_seconds}});
  }
  return list;
}

}  // namespace

ExitCode bench_comm_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "mpirun -n N megatron_cpp bench comm",
                    .summary = "Times collectives and messages of fp32 tensors in alternation with MPI's own calls."};
  BenchCommOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_input(world.ranks.size() >= 2, "bench comm: needs at least two ranks; start it with mpirun -n 2 or more");
  check_input(options.smallest <= options.largest, "--smallest=", options.smallest,
              " is more than --largest=", options.largest);
  const std::vector<std::string> operations = operations_of(options.operations);
  // Each of the two programs has two full tensors and a shard.
  check_memory(4 * static_cast<double>(options.largest), world.ranks, "tensors of this size",
               "a smaller --largest needs less");
  CpuDevice device({.shared = true}), ordinary;
  MpiBaseline mpi(copy_of_world());
  const std::vector<CommRow> rows = bench_comm({world.ranks, device}, {mpi, ordinary},
                                               {.smallest = options.smallest,
                                                .largest = options.largest,
                                                .rounds = static_cast<int>(options.rounds),
                                                .repeats = static_cast<int>(options.repeats),
                                                .operations = operations});
  if (options.json)
    log.info(nlohmann::ordered_json{{"ranks", world.ranks.size()}, {"rows", as_json(rows)}}.dump());
  else
    log.info(str(world.ranks.size(), " ranks\n", comm_table(rows)));
  return ExitCode::Done;
}

}  // namespace mcpp
