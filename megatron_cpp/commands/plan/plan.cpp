// Command megatron_cpp plan: predicts, explains and chooses a layout without the hardware.
#include "megatron_cpp/setup/plan.h"

#include <utility>

#include "base/file.h"
#include "base/number_text.h"
#include "base/program/shipped_file.h"
#include "megatron_cpp/commands/plan/plan_from_run.h"
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/commands/plan/plan_worlds.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/placement.h"
#include "parallel/pp/draw.h"
#include "plan/hardware/real.h"
#include "plan/recipe.h"
#include "plan/report/report.h"
#include "plan/report/roofline.h"
#include "plan/report/step_page.h"
#include "plan/save_time.h"
#include "plan/search.h"
#include "plan/step/elsewhere.h"

namespace mcpp {
namespace {

/// Converts to MPI's type for ranks; options and links allow fewer.
int ranks_of(i64 world_size) {
  check_input(real(world_size) <= kMostRanks, "world_size = ", world_size, ": must be at most ", kMostRanks);
  return static_cast<int>(world_size);
}

SearchLimits limits_of(const PlanOptions& options, const Hardware& hardware) {
  return {.world_size = options.world_size,
          .tensor_model_parallel_size = options.tp,
          .context_parallel_size = options.cp,
          .expert_model_parallel_size = options.ep,
          .pipeline_model_parallel_size = options.pp,
          .micro_batch_size = options.micro_batch_size,
          .memory_bytes = (1 - options.memory_reserve) * hardware.memory_bytes(),
          .objective = options.objective,
          .allow_lossy_comm = options.allow_lossy_comm,
          .keep = static_cast<int>(options.keep)};
}

/// Returns a note if a rank's memory exceeds the limit, otherwise "".
std::string too_much_text(double memory, const SearchLimits& limits) {
  return memory <= limits.memory_bytes ? ""
                                       : str(", and it has ", human_bytes(limits.memory_bytes), ": it does not fit");
}

/// Returns the cost of training on options.deadline.tokens, if given.
std::optional<TrainingCost> cost_of(const PlanOptions& options, const Job& job, const StepTime& step) {
  if (options.deadline.tokens == 0) return std::nullopt;
  return training_cost(job, step.seconds, options.deadline.tokens, options.failures);
}

std::string training_text(const PlanOptions& options, const TrainingCost& cost) {
  return str(human_count(options.deadline.tokens), " tokens ", cost_text(cost, options.deadline.price), "\n");
}

/// Predicts the configuration's own layout, whether or not it fits.
void predict(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const int world_size = ranks_of(options.world_size);
  std::vector<std::string> problems = layout_problems(config, world_size);
  if (const i64 most = any.hardware.links.ranks.back(); world_size > most)
    problems.push_back(str("world_size = ", world_size, ", but the links of ", any.hardware.device.name, " join ", most,
                           " at most (links.ranks)"));
  check_input(problems.empty(), "the configuration's layout cannot run:\n  ", join(problems, "\n  "));
  const Job own{any.hardware, any.program, any.work, layout_of(config, world_size)};
  const StepTime step = configured_step(any, config, world_size);
  const double memory = most_memory(config, world_size);
  if (!options.html.empty()) write_file_atomic(options.html, step_page(own, step));
  const std::optional<TrainingCost> cost = cost_of(options, own, step);
  const bool fits = memory <= limits_of(options, any.hardware).memory_bytes;
  if (options.json) return log.info(step_json(own, step, {.bytes = memory, .fits = fits}, cost));
  log.info(str(step_text(own, step), "  ", human_bytes(memory), " of memory on the rank that needs most",
               too_much_text(memory, limits_of(options, any.hardware)), "\n"));
  if (cost) log.info(training_text(options, *cost));
}

/// Describes the configuration's own layout, if it can run.
std::string configured(const Config& config, const Job& best, const StepTime& best_time, const SearchLimits& limits) {
  const int world_size = ranks_of(best.layout.world_size);
  if (const auto problems = layout_problems(config, world_size); !problems.empty())
    return str("the configuration's own layout cannot run on ", world_size, " ranks: ", problems.front(), "\n");
  const Layout layout = layout_of(config, world_size);
  if (const auto missing = missing_rates(best.hardware, layout); !missing.empty())
    return str("the configuration's own layout cannot be predicted: ", missing.front(), "\n");
  const Job own{best.hardware, best.program, best.work, layout};
  const double seconds = step_time(own).seconds, memory = most_memory(config, world_size);
  return str("the configuration's own layout: ", own.layout.describe(), "\n  ", human_step_seconds(seconds),
             " a step, ", fixed(seconds / best_time.seconds, 2), " times the best; a rank needs ", human_bytes(memory),
             too_much_text(memory, limits), "\n");
}

/// Logs the best layouts for options.world_size ranks and the requested details of the best one.
void plan_layouts(const PlanOptions& options, const Config& config, const Job& any, const Log& log) {
  const Hardware& hardware = any.hardware;
  const SearchLimits limits = limits_of(options, hardware);
  const SearchResult result = search_layouts(hardware, any.program, any.work, limits);
  if (result.best.empty()) fail_nothing_fits(result, hardware, any.work, limits);
  const Candidate& best = result.best.front();
  const Job job{hardware, any.program, any.work, best.layout};
  if (options.explain) log.info(recipe_text(usual_recipe(hardware, any.work, options.world_size)));
  log.info(search_text(job, result) + configured(config, job, best.time, limits));
  if (const auto cost = cost_of(options, job, best.time)) log.info(training_text(options, *cost));
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
    write_file_atomic(options.emit, print_config(without_unused_keys(with_layout(config, best.layout))));
    log.info(str("the configuration with the best layout is in ", options.emit,
                 best.layout.uses(OffloadTier::File) && config.optimizer.offload_folder.empty()
                     ? "; before it runs it needs optimizer.offload_folder, on a disk"
                     : ""));
  }
}

/// Sets the document length from the options, if it matters.
void count_documents(const PlanOptions& options, const Config& config, Workload& work, const Log& log) {
  const bool counts = config.data.reset_attention_mask;
  check_input(counts || options.document_tokens == 0,
              "--document_tokens: is for data.reset_attention_mask, without which attention sees all of a sample");
  if (options.document_tokens > 0) work.document_tokens = options.document_tokens;
  if (counts && work.document_tokens == 0)
    log.warn(
        "data.reset_attention_mask: attention is predicted as if no document ended inside a sample, as the datasets "
        "have no .json files here that tell how long theirs are; --document_tokens=N says it");
}

/// Rejects hardware described separately by number of ranks for questions that compare several numbers of ranks.
void check_worlds(const PlanOptions& options, const HardwareKind& kind) {
  const char* asked = !options.scale.empty() ? "--scale" : options.asks_for_fewest() ? "--deadline_hours" : nullptr;
  if (asked == nullptr || !kind.depends_on_ranks()) return;
  std::vector<std::string> numbers;
  for (const auto& [ranks, ignored] : kind.by_ranks) numbers.push_back(std::to_string(ranks));
  fail(ExitCode::BadInput, asked, ": --hardware=", options.hardware, " describes ", join(numbers, ", "),
       " ranks apart, as they share a machine; ask for one of these with --world_size");
}

/// Reads the configuration and hardware that the arguments name and reports the errors of both. Returns std::nullopt
/// after --help.
std::optional<Config> read_all(Arguments args, const Usage& usage, PlanOptions& options, HardwareKind& kind,
                               const Log& log) {
  std::string problem;
  const auto load = [&](const PlanOptions& given) {
    try {
      if (!given.hardware.empty()) kind = load_hardware(given.hardware, find_shipped(given.hardware_folder));
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

}  // namespace

ExitCode plan_command(Arguments args, Log& log) {
  const bool scales = !args.empty() && args.front() == "scale";
  if (scales) args = args.subspan(1);
  if (const std::string hint = hint_for(args); !hint.empty() && !asks_for_help(args) && !asks_for_options(args))
    fail(ExitCode::BadInput, hint);
  const Usage usage{.command = scales ? "megatron_cpp plan scale" : "megatron_cpp plan",
                    .summary =
                        "Finds the layouts of a model that train fastest on a cluster, by a model of its cost. "
                        "plan scale CONFIG --world_size=N: of 1, 2, 4, ... N ranks. "
                        "plan calibrate --help: measures this machine for it.",
                    .positional = {"config"},
                    .required = {"config", "hardware"}};
  PlanOptions options;
  HardwareKind kind;
  std::optional<Config> config = read_all(args, usage, options, kind, log);
  if (!config) return ExitCode::Done;
  if (scales && options.scale.empty()) {
    check_input(options.world_size > 0,
                "plan scale: needs --world_size, up to which ranks double, or --scale=64,96,128");
    options.scale = doublings(std::exchange(options.world_size, 0));
  }
  check_options(options);
  check_worlds(options, kind);
  std::optional<FormerRun> run;
  if (!options.from_run.empty()) run = read_former_run(options, *config);
  check_input(config->model.vocab_size > 0, "model.vocab_size: is missing; a plan does not read the tokenizer");
  if (run) kind = hardware_of_run(options, *run, kind, log);
  const Hardware& hardware = kind.of(options.world_size);
  const Implementation program;
  Workload work = workload_of(*config);
  check_fp8_rate(hardware, work);
  work.expert_imbalance = options.expert_imbalance;
  count_documents(options, *config, work, log);
  const Job any{hardware, program, work, {}};
  const SearchLimits limits = limits_of(options, hardware);
  if (options.predict) {
    predict(options, *config, any, log);
    return ExitCode::Done;
  }
  if (!options.scale.empty())
    plan_worlds(options, any, limits, log);
  else if (options.asks_for_fewest())
    plan_deadline(options, any, limits, log);
  else
    plan_layouts(options, *config, any, log);
  return ExitCode::Done;
}

ExitCode plan_command(Arguments args, Log& log, const World& world) {
  if (!args.empty() && args[0] == "calibrate") return plan_calibrate_command(args.subspan(1), log, world);
  check_input(world.ranks.size() == 1, "megatron_cpp plan runs in one process, not on ", world.ranks.size(),
              " ranks; start it without mpirun or srun");
  return plan_command(args, log);
}

}  // namespace mcpp
