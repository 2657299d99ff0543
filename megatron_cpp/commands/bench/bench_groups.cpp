// Command megatron_cpp bench groups: cost of creating the groups of a layout, on MPI ranks or threads.
#include "megatron_cpp/bench/bench_groups.h"

#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "comm/local.h"
#include "megatron_cpp/commands/bench/bench_commands.h"
#include "megatron_cpp/config/options.h"

namespace mcpp {
namespace {

struct BenchGroupsOptions {
  i64 threads = 0;
  i64 tensor_model_parallel_size = 2;
  i64 pipeline_model_parallel_size = 2;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("threads", self.threads, "ranks as threads of this process; 0 = the ranks of mpirun", between(0, 4096));
    visit("tensor_model_parallel_size", self.tensor_model_parallel_size,
          "as parallel.tensor_model_parallel_size of a configuration", at_least(1));
    visit("pipeline_model_parallel_size", self.pipeline_model_parallel_size,
          "as parallel.pipeline_model_parallel_size of a configuration", at_least(1));
    visit("json", self.json, "print one JSON object instead of text");
  }
};

GroupCosts on_threads(int ranks, const ParallelSizes& sizes) {
  GroupCosts costs;
  run_local_ranks(ranks, [&](Communicator& world, int rank) {
    const GroupCosts figures = bench_groups(world, sizes);
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
          "Measures how long the ranks of a layout take to create their groups, and the memory that these take."};
  BenchGroupsOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_input(options.threads == 0 || world.ranks.size() == 1,
              "--threads: applies only to a single process, and there are ", world.ranks.size(), " ranks");
  const ParallelSizes sizes{.tensor_model_parallel_size = options.tensor_model_parallel_size,
                            .pipeline_model_parallel_size = options.pipeline_model_parallel_size};
  const GroupCosts costs =
      options.threads > 0 ? on_threads(static_cast<int>(options.threads), sizes) : bench_groups(world.ranks, sizes);
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
