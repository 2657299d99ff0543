// megatron_cpp plan: predicts, explains and chooses a layout, without the hardware.
#include "base/file.h"
#include "base/number_text.h"
#include "base/program/shipped_file.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
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
  i64 tp = 0, cp = 0, pp = 0, micro_batch_size = 0;
  i64 keep = 5;
  double memory_reserve = 0.08;
  bool explain = false;
  std::string emit, svg;
  std::vector<i64> scale;
  bool weak = false;
  Failures failures;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML, as pretrain takes it");
    visit("hardware", self.hardware, "kind of cluster: a file of the hardware folder without .toml, or any file");
    visit("hardware_folder", self.hardware_folder, "where the files of kinds of clusters are");
    visit("world_size", self.world_size, "ranks, one for each device", between(1, 1e6));
    visit("tp", self.tp, "only layouts with this tensor_model_parallel_size; 0 = any", between(0, 4096));
    visit("cp", self.cp, "the same of context_parallel_size", between(0, 4096));
    visit("pp", self.pp, "the same of pipeline_model_parallel_size", between(0, 4096));
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
    visit("emit", self.emit, "file for the whole configuration with the best layout, which pretrain takes");
  }
};

SearchLimits limits_of(const PlanOptions& options, const Hardware& hardware) {
  return {.world_size = options.world_size,
          .tensor_model_parallel_size = options.tp,
          .context_parallel_size = options.cp,
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

[[noreturn]] void fail_nothing_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                                    const SearchLimits& limits) {
  const Candidate& smallest = result.smallest;
  const i64 world = smallest_world(hardware, work, limits);
  fail(ExitCode::BadInput, "nothing fits: of ", result.possible, " layouts of ", limits.world_size,
       " ranks the one that needs least, ", smallest.layout.describe(), ", needs ",
       human_bytes(smallest.memory.total()), " of the ", human_bytes(limits.memory_bytes), " that a rank on ",
       hardware.device.name, " has; ",
       world > 0 ? str("the smallest world that would do has ", world, " ranks")
                 : str("no world that its links join would do; use devices with more memory"));
}

}  // namespace

ExitCode plan_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp plan",
                    .summary = "Finds the layouts of a model that train fastest on a cluster, by a model of its cost.",
                    .positional = {"config"},
                    .required = {"config", "hardware"}};
  PlanOptions options;
  const std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_input(config->model.moe.num_experts == 0, "model.num_experts: mixtures of experts are not planned yet");
  const Hardware hardware = load_hardware(options.hardware, find_shipped(options.hardware_folder));
  const Implementation program;
  const Workload work = workload_of(*config);
  check_input(config->model.vocab_size > 0, "model.vocab_size: is missing; a plan does not read the tokenizer");
  const SearchLimits limits = limits_of(options, hardware);
  if (!options.scale.empty()) {
    const std::vector<ScalingPoint> points = scaling(hardware, program, work, limits, options.scale, options.weak);
    log.info(scaling_text({hardware, program, work, {}}, points, options.weak));
    return ExitCode::Done;
  }
  check_input(options.world_size > 0, "--world_size: is missing: ranks, one for each device; or --scale=64,128,256");
  const SearchResult result = search_layouts(hardware, program, work, limits);
  if (result.best.empty()) fail_nothing_fits(result, hardware, work, limits);
  const Candidate& best = result.best.front();
  const Job job{hardware, program, work, best.layout};
  if (options.explain) log.info(recipe_text(usual_recipe(hardware, work, options.world_size)));
  log.info(search_text(job, result) + configured(*config, job, best.time));
  if (options.explain) log.info(step_text(job, best.time) + products_text(job) + gains_text(what_helps(job)));
  if (options.failures.device_hours > 0)
    log.info(failures_text(loss_by_failures(options.failures, options.world_size)));
  if (!options.svg.empty()) {
    const DrawnStep drawn = drawn_step(job, 4 * best.layout.pp);
    write_file_atomic(options.svg, draw_svg(drawn.schedule, drawn.timeline));
  }
  if (!options.emit.empty()) {
    write_file_atomic(options.emit, print_config(with_layout(*config, best.layout)));
    log.info(str("the configuration with the best layout is in ", options.emit));
  }
  return ExitCode::Done;
}

}  // namespace mcpp
