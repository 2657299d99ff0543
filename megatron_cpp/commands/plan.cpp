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
#include "plan/report/report.h"
#include "plan/report/roofline.h"
#include "plan/report/step_page.h"
#include "plan/save_time.h"
#include "plan/search.h"
#include "plan/step/elsewhere.h"

namespace mcpp {
namespace {

/// Hours between failures of a device: with less nobody trains.
constexpr double kShortestLife = 0.01;

struct PlanOptions {
  std::string config;
  std::string hardware;
  std::string hardware_folder = "configs/hardware";
  i64 world_size = 0;
  i64 tp = 0, cp = 0, pp = 0, ep = 0, micro_batch_size = 0;
  double expert_imbalance = Workload().expert_imbalance;
  i64 keep = 5;
  double memory_reserve = kMemoryReserve;
  bool other_numbers = false, explain = false, predict = false, json = false;
  std::string emit, svg, html;
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
    visit("other_numbers", self.other_numbers,
          "also layouts whose ranks send weights or gradients with fewer bits than the configuration says, which "
          "changes what is trained");
    visit("explain", self.explain, "also the usual recipe, and where the time of the best layout's step goes");
    visit("predict", self.predict,
          "only how long a step of the configuration's own layout takes, and the memory that it needs");
    visit("json", self.json, "with --predict, one JSON object instead of a table");
    visit("svg", self.svg,
          "file for an image of the first microbatches of the best layout's step on each pipeline rank");
    visit("html", self.html,
          "file for a page with where the time of its ranks goes, their passes and their memory; with --predict of the "
          "configuration's own layout");
    visit("scale", self.scale, "numbers of ranks: a table of the best layout of each, instead of all this",
          between(1, 1e6));
    visit("weak", self.weak, "in that table the batch grows with the ranks, from that of the first");
    visit("device_hours", self.failures.device_hours, "mean time between failures of one device; 0 = not looked at",
          at_least(0));
    visit("save_seconds", self.failures.save_seconds, "that a training waits for a checkpoint; 0 = as predicted",
          between(0, 1e9));
    visit("restart_seconds", self.failures.restart_seconds, "from a failure to the first new step", between(0, 1e9));
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
          .other_numbers = options.other_numbers,
          .keep = static_cast<int>(options.keep)};
}

/// Of the rank that needs most.
double most_memory(const Config& config, int world_size) {
  double most = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size)) most = std::max(most, rank.total());
  return most;
}

/// The configuration's own layout, whether or not it fits.
void predict(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const int world_size = static_cast<int>(options.world_size);
  std::vector<std::string> problems = layout_problems(config, world_size);
  if (const i64 most = any.hardware.links.ranks.back(); world_size > most)
    problems.push_back(str("world_size = ", world_size, ", but the links of ", any.hardware.device.name, " join ", most,
                           " at most (links.ranks)"));
  check_input(problems.empty(), "the configuration's layout cannot run:\n  ", join(problems, "\n  "));
  const Job own{any.hardware, any.program, any.work, layout_of(config, world_size)};
  const StepTime step = configured_step(any, config, world_size);
  const double memory = most_memory(config, world_size);
  if (!options.html.empty()) write_file_atomic(options.html, step_page(own, step));
  if (options.json) return log.info(step_json(own, step, memory));
  log.info(step_text(own, step) + "  " + human_bytes(memory) + " of memory on the rank that needs most\n");
}

/// Of the layout that the configuration has, when it can run.
std::string configured(const Config& config, const Job& best, const StepTime& best_time) {
  const int world_size = static_cast<int>(best.layout.world_size);
  if (const auto problems = layout_problems(config, world_size); !problems.empty())
    return str("the configuration's own layout cannot run on ", world_size, " ranks: ", problems.front(), "\n");
  const Layout layout = layout_of(config, world_size);
  if (const auto missing = missing_rates(best.hardware, layout); !missing.empty())
    return str("the configuration's own layout cannot be predicted: ", missing.front(), "\n");
  const Job own{best.hardware, best.program, best.work, layout};
  const double seconds = step_time(own).seconds;
  return str("the configuration's own layout: ", own.layout.describe(), "\n  ", human_seconds(seconds), " a step, ",
             fixed(seconds / best_time.seconds, 2), " times the best\n");
}

/// Says how fast a run of `config` was, and returns the hardware as it found it.
Hardware hardware_of_run(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const MeasuredRun measured = read_measured_run(options.from_run);
  const int world_size = static_cast<int>(options.world_size);
  const StepTime predicted = configured_step(any, config, world_size);
  const Job own{any.hardware, any.program, any.work, layout_of(config, world_size)};
  const std::vector<MemoryEstimate> ranks = estimate_memory_by_stage(config, world_size);
  std::vector<RunPart> details = compare_modules(own, measured);
  for (RunPart& part : compare_memory(ranks, measured)) details.push_back(std::move(part));
  log.info(str("the run in ", options.from_run, ", ", own.layout.describe(), "\n",
               comparison_text(compare(predicted, most_memory(config, world_size), measured)),
               details.empty() ? "" : "of these\n" + parts_text(details)));
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
  if (options.explain) log.info(step_text(job, best.time) + roofline_text(job) + gains_text(what_helps(job)));
  if (options.explain || options.failures.device_hours > 0) log.info(save_text(job, save_time(job)));
  if (options.failures.device_hours > 0) {
    Failures failures = options.failures;
    if (failures.save_seconds == 0) failures.save_seconds = save_time(job).seconds;
    log.info(failures_text(loss_by_failures(failures, options.world_size)));
  }
  if (!options.svg.empty()) {
    const DrawnStep drawn = drawn_step(job, 4 * best.layout.pp);
    write_file_atomic(options.svg, draw_svg(drawn.schedule, drawn.timeline));
  }
  if (!options.html.empty()) write_file_atomic(options.html, step_page(job, best.time));
  if (!options.emit.empty()) {
    write_file_atomic(options.emit, print_config(with_layout(config, best.layout)));
    log.info(str("the configuration with the best layout is in ", options.emit,
                 best.layout.uses(OffloadTier::File) && config.optimizer.offload_folder.empty()
                     ? "; before it runs it needs optimizer.offload_folder, on a disk"
                     : ""));
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

/// Several answers were asked for where there is one, or a part of one that is not given.
void check_answers(const PlanOptions& options, std::vector<std::string>& problems) {
  std::vector<std::string> instead;
  for (const auto& [is_asked, name] : {std::pair(options.predict, "--predict"),
                                       {!options.scale.empty(), "--scale"},
                                       {options.deadline.tokens > 0, "--tokens"}})
    if (is_asked) instead.emplace_back(name);
  if (instead.size() > 1) problems.push_back(str(join(instead, " and "), ": each is instead of the other; give one"));
  if (instead.empty()) return;
  const bool has_page = instead.front() == "--predict";
  for (const auto& [is_asked, name] : {std::pair(options.explain, "--explain"),
                                       {!options.svg.empty(), "--svg"},
                                       {!options.emit.empty(), "--emit"},
                                       {!options.html.empty() && !has_page, "--html"}})
    if (is_asked)
      problems.push_back(str(name, ": is of the best layout of a world, which ", instead.front(), " does not ask for"));
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
  if (options.predict && options.world_size == 0)
    problems.push_back("--predict: needs --world_size, the ranks of the configuration's layout");
  if (options.failures.device_hours > 0 && options.failures.device_hours < kShortestLife)
    problems.push_back(
        str("--device_hours=", options.failures.device_hours, ": must be 0 or at least ", kShortestLife));
  if (options.json && !options.predict) problems.push_back("--json: is for --predict");
  if (options.weak && options.scale.empty()) problems.push_back("--weak: is for --scale");
  check_answers(options, problems);
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
  if (options.predict) {
    predict(options, *config, any, log);
  } else if (options.deadline.tokens > 0) {
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
