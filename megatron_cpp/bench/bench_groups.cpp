#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/machine.h"
#include "base/number_format.h"
#include "comm/local.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/config/arguments.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

i64 own_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    i64 kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib << 10;
  }
  return 0;
}

/// Returns the seconds until all ranks have finished `f`.
template <class F>
double seconds_of_all(Communicator& world, const F& f) {
  world.barrier();
  const double begin = steady_seconds();
  f();
  world.barrier();
  return steady_seconds() - begin;
}

void sum_once(const ParallelState& state, Device& device) {
  for (Communicator* group : {state.tp.get(), state.dp.get(), state.dp_shard.get(), state.dp_replicate.get(),
                              state.tp_dp_shard.get(), state.tp_pp.get(), &state.world})
    reduce_scalar(1, ReduceOp::Sum, *group, device);
}

}  // namespace

GroupCosts bench_groups(Communicator& world, const Layout& layout) {
  CpuDevice device;
  reduce_scalar(1, ReduceOp::Sum, world, device);  // initializes the communicator of the world
  const i64 before = own_bytes();
  std::optional<ParallelState> state;
  GroupCosts local{.ranks = world.size()};
  local.make_s = seconds_of_all(world, [&] { state.emplace(make_parallel_state(world, layout)); });
  local.first_use_s = seconds_of_all(world, [&] { sum_once(*state, device); });
  local.own_bytes = std::max<i64>(0, own_bytes() - before);
  for (const auto& [name, meter] : state->meters) {
    if (meter->ranks.size() < 2) continue;
    ++local.groups;
    local.members += static_cast<i64>(meter->ranks.size());
  }
  const auto max_over_ranks = [&](double value) { return reduce_scalar(value, ReduceOp::Max, world, device); };
  return {.ranks = local.ranks,
          .groups = static_cast<i64>(max_over_ranks(static_cast<double>(local.groups))),
          .members = static_cast<i64>(max_over_ranks(static_cast<double>(local.members))),
          .make_s = max_over_ranks(local.make_s),
          .first_use_s = max_over_ranks(local.first_use_s),
          .own_bytes = static_cast<i64>(max_over_ranks(static_cast<double>(local.own_bytes)))};
}

// Command megatron_cpp bench groups: cost of creating the groups of a layout, on MPI ranks or threads.

namespace {

struct BenchGroupsOptions {
  i64 threads = 0;
  i64 tensor_model_parallel_size = 2;
  i64 pipeline_model_parallel_size = 2;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("threads", self.threads, "number of ranks, as threads of this process; 0 = the ranks of mpirun",
          between(0, 4096));
    visit("tensor_model_parallel_size", self.tensor_model_parallel_size,
          "number of tensor-parallel ranks, as in a configuration", at_least(1));
    visit("pipeline_model_parallel_size", self.pipeline_model_parallel_size,
          "number of pipeline ranks, as in a configuration", at_least(1));
    visit("json", self.json, "print one JSON object instead of text");
  }
};

GroupCosts on_threads(int ranks, const Layout& layout) {
  GroupCosts costs;
  run_local_ranks(ranks, [&](Communicator& world, int rank) {
    const GroupCosts figures = bench_groups(world, layout);
    if (rank == 0) costs = figures;
  });
  costs.own_bytes = 0;  // threads share the memory of the process
  return costs;
}

}  // namespace

ExitCode bench_groups_command(Arguments args, Log& log, const World& world) {
  const Usage usage{
      .command = "[mpirun -n N] megatron_cpp bench groups",
      .summary =
          "Measures the time that the ranks of a layout take to create their groups, and the memory of these groups."};
  BenchGroupsOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_input(options.threads == 0 || world.ranks.size() == 1, "--threads: applies only to a single process, not to ",
              world.ranks.size(), " ranks");
  const Layout layout{.tp = options.tensor_model_parallel_size, .pp = options.pipeline_model_parallel_size};
  const GroupCosts costs =
      options.threads > 0 ? on_threads(static_cast<int>(options.threads), layout) : bench_groups(world.ranks, layout);
  if (options.json)
    log.info(nlohmann::ordered_json{{"ranks", costs.ranks},
                                    {"groups", costs.groups},
                                    {"members", costs.members},
                                    {"make_s", costs.make_s},
                                    {"first_use_s", costs.first_use_s},
                                    {"own_bytes", costs.own_bytes}}
                 .dump());
  else
    log.info(str(costs.ranks, " ranks, each in ", costs.groups, " groups of ", costs.members,
                 " ranks in total; created in ", fixed(1e3 * costs.make_s, 1), " ms, first used in ",
                 fixed(1e3 * costs.first_use_s, 1), " ms; ", human_bytes(static_cast<double>(costs.own_bytes)),
                 " of a rank's own memory"));
  return ExitCode::Done;
}

}  // namespace mcpp
