// Command megatron_cpp bench comm: compares collectives of various sizes with MPI's under mpirun.
#include "megatron_cpp/bench/bench_comm.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "comm/mpi/mpi_baseline.h"
#include "megatron_cpp/commands/bench/bench_commands.h"
#include "megatron_cpp/config/options.h"
#include "megatron_cpp/setup/memory_check.h"

namespace mcpp {
namespace {

constexpr double kLargest = 1e12;  // bytes; four times this does not overflow

struct BenchCommOptions {
  i64 smallest = CommTiming{}.smallest;
  i64 largest = CommTiming{}.largest;
  i64 rounds = CommTiming{}.rounds;
  i64 repeats = CommTiming{}.repeats;
  std::string operations;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("smallest", self.smallest, "bytes of the smallest tensor; each further one is four times larger",
          between(1 << 10, kLargest));
    visit("largest", self.largest, "bytes of the largest", between(1 << 10, kLargest));
    visit("rounds", self.rounds, "rounds, in which each side is measured once", between(1, 1e6));
    visit("repeats", self.repeats, "timed runs per round; the median of all is reported", between(1, 1e6));
    visit("operations", self.operations, "operations to time, separated by commas; all if empty");
    visit("json", self.json, "print one JSON object instead of a table");
  }
};

std::vector<std::string> operations_of(const std::string& list) {
  if (list.empty()) return {};
  const std::vector<std::string> all = comm_operations(), chosen = split(list, ',');
  for (const std::string& name : chosen)
    check_input(std::ranges::find(all, name) != all.end(), "--operations: there is no \"", name, "\", only ",
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
  // Each side has two full tensors and a shard.
  check_memory(4 * static_cast<double>(options.largest), world.ranks, "tensors of this size",
               "a smaller --largest needs less");
  CpuDevice device({.shared = true}), ordinary;
  const auto mpi = make_mpi_baseline();
  const std::vector<CommRow> rows = bench_comm({world.ranks, device}, {*mpi, ordinary},
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
