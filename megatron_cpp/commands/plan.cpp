// megatron_cpp plan: predicts, explains and chooses a layout, without the hardware.
#include "megatron_cpp/setup/plan.h"

#include "base/file.h"
#include "base/number_text.h"
#include "base/program/shipped_file.h"
#include "megatron_cpp/commands/plan.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/monitor/run_metrics.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/placement.h"
#include "parallel/pp/draw.h"
#include "plan/recipe.h"
#include "plan/report.h"
#include "plan/search.h"

namespace mcpp {
namespace {

struct PlanOptions {
  std::string config;
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  i64 world_size = 0;
  i64 tp = 0, cp = 0, pp = 0, ep = 0, micro_batch_size = 0;
  double expert_imbalance = Workload().expert_imbalance;
  i64 keep = 5;
  double memory_reserve = kMemoryReserve;
  bool explain = false;
  std::string emit, svg;
  std::vector<i64> scale;
  bool weak = false;
  Failures failures;
  Deadline deadline;
  std::string from_run;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML, as pretrain takes it");
    visit("hardware", self.hardware, "kind of cluster: a file of the hardware folder without .toml, or any file");
    visit("hardware_folder", self.hardware_folder, "where the files of kinds of clusters are");
    visit("world_size", self.world_size, "ranks, one for each device", between(1, 1e6));
    visit("tp", self.tp, "only layouts with this tensor_model_parallel_size; 0 = any", between(0, 4096));
    visit("cp", self.cp, "the same of context_parallel_size", between(0, 4096));
    visit("pp", self.pp, "the same of pipeline_model_parallel_size", between(0, 4096));
    visit("ep", self.ep, "the same of expert_model_parallel_size", between(0, 4096));
    visit("expert_imbalance", self.expert_imbalance,
          "tokens that come to the experts of the busiest rank, over an even share", between(1, 100));
    visit("micro_batch_size", self.micro_batch_size, "the same of micro_batch_size", between(0, 4096));
    visit("keep", self.keep, "how many of the fastest layouts to show", between(1, 100));
    visit("memory_reserve", self.memory_reserve,
          "part of a device's memory that is left to libraries, the driver and fragments", from_to_below(0, 1));
    visit("explain", self.explain, "also the usual recipe, and where the time of the best layout's step goes");
    visit("svg", self.svg,
          "file for an image of the first microbatches of the best layout's step on each pipeline rank");
    visit("scale", self.scale, "numbers of ranks: a table of the best layout of each, instead of all this",
          between(1, 1e6));
    visit("weak", self.weak, "in that table the batch grows with the ranks, from that of the first");
    visit("device_hours", self.failures.device_hours, "mean time between failures of one device; 0 = not looked at",
          at_least(0));
    visit("save_seconds", self.failures.save_seconds, "that a training waits for a checkpoint", at_least(0));
    visit("restart_seconds", self.failures.restart_seconds, "from a failure to the first new step", at_least(0));
    visit("tokens", self.deadline.tokens, "to train on: the fewest devices that do so in time, instead of all this",
          at_least(0));
    visit("deadline_hours", self.deadline.hours, "the time that they have", at_least(0));
    visit("price", self.deadline.price, "of an hour of a device", at_least(0));
    visit("from_run", self.from_run,
          "folder of a run of this configuration on world_size ranks, or its metrics.jsonl: what it took beside what "
          "is predicted, and all else for hardware as fast as it was");
    visit("emit", self.emit, "file for the whole configuration with the best layout, which pretrain takes");
  }
};

SearchLimits limits_of(const PlanOptions& options, const Hardware& hardware) {
  return {.world_size = options.world_size,
          .tensor_model_parallel_size = options.tp,
          .context_parallel_size = options.cp,
          .expert_model_parallel_size = options.ep,
          .pipeline_model_parallel_size = options.pp,
          .micro_batch_size = options.micro_batch_size,
          .memory_bytes = (1 - options.memory_reserve) * hardware.memory_bytes(),
          .keep = static_cast<int>(options.keep)};
}

/// Of the layout that the configuration has, when it can run.
std::string configured(const Config& config, const Job& best, const StepTime& best_time) {
  const int world_size = static_cast<int>(best.layout.world_size);
  if (const auto problems = layout_problems(config, world_size); !problems.empty())
    return str("the configuration's own layout cannot run on ", world_size, " ranks: ", problems.front(), "\n");
  const Job own{best.hardware, best.program, best.work, layout_of(config, world_size)};
  const double seconds = step_time(own).seconds;
  return str("the configuration's own layout: ", own.layout.describe(), "\n  ", human_seconds(seconds), " a step, ",
             fixed(seconds / best_time.seconds, 2), " times the best\n");
}

/// Says how fast a run of `config` was, and returns the hardware as it found it.
Hardware hardware_of_run(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const MeasuredRun measured = read_measured_run(options.from_run);
  const int world_size = static_cast<int>(options.world_size);
  check_layout(config, world_size);
  const Job own{any.hardware, any.program, any.work, layout_of(config, world_size)};
  const StepTime predicted = step_time(own);
  double memory = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size))
    memory = std::max(memory, rank.total());
  log.info(str("the run in ", options.from_run, ", ", own.layout.describe(), "\n",
               comparison_text(compare(predicted, memory, measured))));
  return as_measured(any.hardware, predicted, measured);
}

/// The best layouts of options.world_size ranks, and what is asked about the best.
void plan_layouts(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const Hardware& hardware = any.hardware;
  const SearchLimits limits = limits_of(options, hardware);
  const SearchResult result = search_layouts(hardware, any.program, any.work, limits);
  if (result.best.empty()) fail_nothing_fits(result, hardware, any.work, limits);
  const Candidate& best = result.best.front();
  const Job job{hardware, any.program, any.work, best.layout};
  if (options.explain) log.info(recipe_text(usual_recipe(hardware, any.work, options.world_size)));
  log.info(search_text(job, result) + configured(config, job, best.time));
  if (options.explain) log.info(step_text(job, best.time) + products_text(job) + gains_text(what_helps(job)));
  if (options.failures.device_hours > 0)
    log.info(failures_text(loss_by_failures(options.failures, options.world_size)));
  if (!options.svg.empty()) {
    const DrawnStep drawn = drawn_step(job, 4 * best.layout.pp);
    write_file_atomic(options.svg, draw_svg(drawn.schedule, drawn.timeline));
  }
  if (!options.emit.empty()) {
    write_file_atomic(options.emit, print_config(with_layout(config, best.layout)));
    log.info(str("the configuration with the best layout is in ", options.emit));
  }
}

/// The configuration and the hardware that the arguments name, with the problems of both; nothing after --help.
std::optional<Config> read_all(Arguments args, const Usage& usage, PlanOptions& options, Hardware& hardware,
                               const Log& log) {
  std::string problem;
  const auto load = [&](const PlanOptions& given) {
    try {
      if (!given.hardware.empty()) hardware = load_hardware(given.hardware, find_shipped(given.hardware_folder));
    } catch (const Error& error) {
      problem = error.what();
    }
  };
  std::optional<Config> config;
  try {
    config = read_config_and_options(args, usage, options, log, [&](const PlanOptions& given, const Config&) {
      load(given);
      return read_config_text(given.config);
    });
  } catch (const Error& error) {
    check_input(problem.empty(), error.what(), "\n", problem);
    throw;
  }
  check_input(problem.empty(), problem);
  return config;
}

/// Every reason why the options together make no question.
void check_options(const PlanOptions& options) {
  std::vector<std::string> problems;
  if (options.world_size == 0 && options.scale.empty() && options.deadline.tokens == 0)
    problems.push_back("--world_size: is missing: ranks, one for each device; or --scale=64,128,256, or --tokens");
  if ((options.deadline.tokens > 0) != (options.deadline.hours > 0))
    problems.push_back("--tokens and --deadline_hours: must be given together");
  if (!options.from_run.empty() && options.world_size == 0)
    problems.push_back("--from_run: needs --world_size, the ranks that it ran on");
  check_input(problems.empty(), join(problems, "\n"));
}

}  // namespace

ExitCode plan_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp plan",
                    .summary =
                        "Finds the layouts of a model that train fastest on a cluster, by a model of its cost. "
                        "plan calibrate --help: measures this machine for it.",
                    .positional = {"config"},
                    .required = {"config", "hardware"}};
  PlanOptions options;
  Hardware hardware;
  const std::optional<Config> config = read_all(args, usage, options, hardware, log);
  if (!config) return ExitCode::Done;
  check_options(options);
  const Implementation program;
  Workload work = workload_of(*config);
  work.expert_imbalance = options.expert_imbalance;
  check_input(config->model.vocab_size > 0, "model.vocab_size: is missing; a plan does not read the tokenizer");
  if (!options.from_run.empty()) hardware = hardware_of_run(options, *config, {hardware, program, work, {}}, log);
  const Job any{hardware, program, work, {}};
  const SearchLimits limits = limits_of(options, hardware);
  if (options.deadline.tokens > 0) {
    const auto found = fewest_devices(hardware, program, work, limits, options.deadline, options.failures);
    log.info(deadline_text(any, found, options.deadline));
  } else if (!options.scale.empty()) {
    const std::vector<ScalingPoint> points = scaling(hardware, program, work, limits, options.scale, options.weak);
    log.info(scaling_text(any, points, options.weak));
  } else {
    plan_layouts(options, *config, any, log);
  }
  return ExitCode::Done;
}

ExitCode plan_command(Arguments args, Log& log, const World& world) {
  if (!args.empty() && args[0] == "calibrate") return plan_calibrate_command(args.subspan(1), log, world);
  check_input(world.ranks.size() == 1, "megatron_cpp plan runs in one process, not on ", world.ranks.size(),
              " ranks; start it without mpirun or srun");
  return plan_command(args, log);
}

}  // namespace mcpp
