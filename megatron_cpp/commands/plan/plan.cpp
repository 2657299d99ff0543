// Command megatron_cpp plan: predicts, explains and chooses a layout without the hardware.
#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/integer_math.h"
#include "base/number_format.h"
#include "base/program/program_files.h"
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/monitor/run_metrics.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/run_summary.h"
#include "parallel/pp/draw.h"
#include "plan/layouts.h"
#include "plan/measured_run.h"
#include "plan/report/report.h"
#include "plan/report/roofline.h"
#include "plan/report/step_html.h"
#include "plan/rule_of_thumb.h"
#include "plan/scaling/training_cost.h"
#include "plan/search.h"
#include "plan/step/step_time.h"

namespace mcpp {

// Implementation of plan --from_run: compares a run with its prediction and derives the hardware from it.

/// Measured run with its configuration and number of ranks, if it recorded them.
struct RecordedRun {
  MeasuredRun measured;
  Config config;
  int world_size;
};

/// Reads the run of options.from_run. Takes the number of ranks and the vocabulary from it if `options` and `config` do
/// not set them.
RecordedRun read_recorded_run(PlanOptions& options, Config& config);

/// Reports the speed of a run and the prediction for this hardware. Returns the hardware adjusted to the run, and
/// writes it to options.emit_hardware if set.
HardwareKind infer_hardware(const PlanOptions& options, const RecordedRun& run, HardwareKind kind, const Log& log);

// Comparison of several numbers of ranks for megatron_cpp plan.

/// Logs the best layout for each of options.scale and the best of all. Throws BadInput, after the table, if no layout
/// fits or none is in time. The layout of `base` is ignored.
void compare_world_sizes(const PlanOptions& options, const PredictionInput& base, const SearchLimits& limits,
                         const Log& log);

/// Finds the smallest number of devices that trains in time. Throws BadInput if no number suffices.
void plan_for_deadline(const PlanOptions& options, const PredictionInput& base, const SearchLimits& limits,
                       const Log& log);

namespace {

std::string ranks_text(int ranks) {
  return str(ranks, ranks == 1 ? " rank" : " ranks");
}

/// Returns the header of the hardware file, which states where its values come from.
std::string origin(const PlanOptions& options, const RecordedRun& run, const std::string& layout, double predicted,
                   const RunSpeed& speed) {
  return str("# --hardware=", options.hardware, " adjusted to the run in ", options.from_run, " by `megatron_cpp plan ",
             "--from_run`:\n# ", ranks_text(run.world_size), ", ", layout, ", ",
             human_step_seconds(run.measured.seconds), " a step, ", human_step_seconds(predicted), " predicted.\n",
             "# Compute rates are ", fixed(speed.compute, 3), " times those of the original file, link rates ",
             speed.links == 1 ? "unchanged: too little was sent to measure them" : str(fixed(speed.links, 3), " times"),
             ".\n\n");
}

/// Writes the hardware file. Throws BadInput if it could not be read back because its rates are implausible.
void write_hardware(const std::string& file, const std::string& head, const HardwareKind& kind) {
  const std::string text = head + print_hardware(kind);
  try {
    parse_hardware(text, file);
  } catch (const Error& error) {
    fail(ExitCode::BadInput, "--emit_hardware=", file,
         ": the run deviates too much from this hardware to derive a file from it:\n", error.what());
  }
  write_file_atomic(file, text);
}

}  // namespace

RecordedRun read_recorded_run(PlanOptions& options, Config& config) {
  MeasuredRun run = read_measured_run(options.from_run);
  Config input =
      run.config.empty() ? config : parse_stored_config(run.config, options.from_run + ": its configuration");
  if (run.world_size == 0) run.world_size = options.world_size;
  check_input(run.world_size > 0, "--from_run=", options.from_run,
              ": does not state its number of ranks; set --world_size");
  const bool needs_no_world_size = options.scale.empty() && !options.should_minimize_devices();
  if (options.world_size == 0 && needs_no_world_size) options.world_size = run.world_size;
  if (config.model.vocab_size == 0) config.model.vocab_size = input.model.vocab_size;
  const int ranks = static_cast<int>(run.world_size);
  return {std::move(run), std::move(input), ranks};
}

HardwareKind infer_hardware(const PlanOptions& options, const RecordedRun& run, HardwareKind kind, const Log& log) {
  const Hardware& hardware = kind.for_ranks(run.world_size);
  const KernelTraits program;
  const Config config = on_nodes_of(hardware, run.config);
  Workload work = make_workload(config);
  work.expert_imbalance = options.expert_imbalance;
  const PredictionInput input{hardware, program, work, layout_of(config, run.world_size)};
  const StepTime predicted = predict_configured_step(input, config, run.world_size);
  std::vector<RunPart> details = compare_stages(step_time_by_rank(input), run.measured);
  for (RunPart& part : compare_modules(input, run.measured)) details.push_back(std::move(part));
  const std::vector<MemoryEstimate> memory = estimate_memory_by_stage(config, run.world_size);
  for (RunPart& part : compare_memory(input.layout, memory, run.measured)) details.push_back(std::move(part));
  const std::vector<RunPart> parts = compare(predicted, max_rank_memory(config, run.world_size), run.measured);
  log.info(str("the run in ", options.from_run, ", ", ranks_text(run.world_size), ", ", input.layout.describe(), "\n",
               comparison_text(parts, details, run.measured),
               module_memory_text(compare_module_memory(module_memory_by_stage(config, run.world_size), run.measured),
                                  run.measured)));
  const RunSpeed speed = infer_speed(predicted, run.measured);
  const std::string head = origin(options, run, input.layout.describe(), predicted.seconds, speed);
  for (auto& [ranks, each] : kind.by_ranks) each = scale_hardware(each, speed);
  if (!options.emit_hardware.empty()) {
    write_hardware(options.emit_hardware, head, kind);
    log.info(
        str("the adjusted hardware was written to ", options.emit_hardware, ", for --hardware and launch.sh --replan"));
  }
  return kind;
}

namespace {

/// Default for the number of tokens.
constexpr double kDefaultTokens = 1e9;

/// Checks limits that no number of ranks could satisfy, before searching many.
void check_limits_of_model(const PredictionInput& base, SearchLimits limits) {
  limits.world_size = kAnyWorld;
  const std::vector<std::string> conflicts = limit_conflicts(base.hardware, base.work, limits);
  check_input(conflicts.empty(), "no layout can be found:\n  ", join(conflicts, "\n  "));
}

/// Checks that a batch that grows with the ranks has an integral number of samples.
void check_batches(const ScalingRequest& request, i64 samples) {
  std::vector<std::string> broken;
  for (const i64 world : request.worlds)
    if (samples * world % request.worlds.front() != 0) broken.push_back(std::to_string(world));
  check_input(broken.empty(), "--weak: ", samples, " samples for ", request.worlds.front(),
              " ranks are not an integer for ", join(broken, " and "),
              "; change training.global_batch_size or --scale");
}

}  // namespace

void compare_world_sizes(const PlanOptions& options, const PredictionInput& base, const SearchLimits& limits,
                         const Log& log) {
  check_limits_of_model(base, limits);
  Deadline training = options.deadline;
  if (training.tokens == 0) training.tokens = kDefaultTokens;
  ScalingRequest request{
      .worlds = options.scale, .is_weak = options.weak, .tokens = training.tokens, .failures = options.failures};
  std::ranges::sort(request.worlds);
  request.worlds.erase(std::unique(request.worlds.begin(), request.worlds.end()), request.worlds.end());
  if (options.weak) check_batches(request, base.work.global_batch_size);
  const std::vector<ScalingPoint> points = scaling(base.hardware, base.program, base.work, limits, request);
  log.info(scaling_text(base, points, options.weak, training.tokens));
  check_input(std::ranges::any_of(points, &ScalingPoint::fits), "no layout fits for any of these numbers of ranks");
  const ScalingPoint* best = best_point(points, options.objective, training.hours);
  check_input(best != nullptr, "none of these numbers of ranks can train on ", human_count(training.tokens),
              " tokens in ", shortest(training.hours), " hours");
  log.info(best_point_text(*best, options.objective, training));
}

void plan_for_deadline(const PlanOptions& options, const PredictionInput& base, const SearchLimits& limits,
                       const Log& log) {
  check_limits_of_model(base, limits);
  const MinDevices devices =
      find_min_devices(base.hardware, base.program, base.work, limits, options.deadline, options.failures);
  const std::string text = deadline_text(base, devices, options.deadline);
  check_input(devices.smallest.has_value(), text);
  log.info(text);
}

namespace {

/// Converts to MPI's type for ranks; options and links allow fewer.
int checked_world_size(i64 world_size) {
  check_input(real(world_size) <= kMaxRanks, "world_size = ", world_size, ": must be at most ", kMaxRanks);
  return static_cast<int>(world_size);
}

SearchLimits make_search_limits(const PlanOptions& options, const Hardware& hardware) {
  return {.world_size = options.world_size,
          .tp = options.tp,
          .cp = options.cp,
          .pp = options.pp,
          .ep = options.ep,
          .micro_batch_size = options.micro_batch_size,
          .memory_bytes = (1 - options.memory_reserve) * hardware.memory_bytes(),
          .objective = options.objective,
          .allow_lossy_comm = options.allow_lossy_comm,
          .implementation = options.implementation,
          .keep = static_cast<int>(options.keep)};
}

/// Returns a note if a rank's memory exceeds the limit, otherwise "".
std::string over_limit_text(double memory, const SearchLimits& limits) {
  return memory <= limits.memory_bytes ? "" : str(", but it has ", human_bytes(limits.memory_bytes), ": does not fit");
}

/// Returns the cost of training on options.deadline.tokens, if set.
std::optional<TrainingCost> estimate_training_cost(const PlanOptions& options, const PredictionInput& input,
                                                   const StepTime& step) {
  if (options.deadline.tokens == 0) return std::nullopt;
  return training_cost(input, step.seconds, options.deadline.tokens, options.failures);
}

std::string training_text(const PlanOptions& options, const TrainingCost& cost) {
  return str(human_count(options.deadline.tokens), " tokens ", cost_text(cost, options.deadline.price), "\n");
}

/// Throws BadInput that lists `settings`, which cannot be predicted for this program.
void check_implementation(Implementation implementation, const std::vector<std::string>& settings) {
  check_input(settings.empty(), "--implementation=", enum_name(implementation), ": cannot be predicted with\n  ",
              join(settings, "\n  "));
}

/// Predicts the configuration's own layout, whether or not it fits. `config` is that of on_nodes_of().
void predict(const PlanOptions& options, const Config& config, const PredictionInput& base, const Log& log) {
  const int world_size = checked_world_size(options.world_size);
  std::vector<std::string> problems = layout_problems(config, world_size);
  if (const i64 max_ranks = base.hardware.links.ranks.back(); world_size > max_ranks)
    problems.push_back(str("world_size = ", world_size, ", but the links of ", base.hardware.device.name,
                           " connect at most ", max_ranks, " ranks (links.ranks)"));
  check_input(problems.empty(), "the configuration's layout cannot run:\n  ", join(problems, "\n  "));
  const PredictionInput input{base.hardware, base.program, base.work, layout_of(config, world_size)};
  check_implementation(options.implementation, unpredictable_settings(options.implementation, input.layout));
  const StepTime step = predict_configured_step(base, config, world_size);
  const double memory = max_rank_memory(config, world_size);
  if (!options.html.empty()) write_file_atomic(options.html, step_html(input, step));
  const std::optional<TrainingCost> cost = estimate_training_cost(options, input, step);
  const bool fits = memory <= make_search_limits(options, base.hardware).memory_bytes;
  if (options.json) return log.info(step_json(input, step, {.bytes = memory, .fits = fits}, cost));
  log.info(str(step_text(input, step), "  ", human_bytes(memory), " of memory on the rank with the highest memory use",
               over_limit_text(memory, make_search_limits(options, base.hardware)), "\n"));
  if (cost) log.info(training_text(options, *cost));
  if (options.goodput) log.info(goodput_text(goodput_by_interval(input, step.seconds, options.failures)));
}

/// Describes the configuration's own layout, if it can run. `config` is that of on_nodes_of().
std::string describe_configured_layout(const Config& config, const PredictionInput& best, const StepTime& best_time,
                                       const SearchLimits& limits) {
  const int world_size = checked_world_size(best.layout.world_size());
  if (const auto problems = layout_problems(config, world_size); !problems.empty())
    return str("the configuration's own layout cannot run on ", world_size, " ranks: ", problems.front(), "\n");
  const Layout layout = layout_of(config, world_size);
  std::vector<std::string> missing = missing_rates(best.hardware, layout);
  if (missing.empty()) missing = unpredictable_settings(limits.implementation, layout);
  if (!missing.empty()) return str("the configuration's own layout cannot be predicted: ", missing.front(), "\n");
  const PredictionInput input{best.hardware, best.program, best.work, layout};
  const Candidate configured{.layout = layout, .time = step_time(input), .memory = {}};
  const double seconds = configured.time.seconds, memory = max_rank_memory(config, world_size);
  const std::string reason =
      seconds <= best_time.seconds
          ? ""
          : str(" (", slowdown_reason(best.hardware, configured, {best.layout, best_time, {}}), ")");
  return str("the configuration's own layout: ", input.layout.describe(), "\n  ", human_step_seconds(seconds),
             " a step, ", fixed(seconds / best_time.seconds, 2), " times the best", reason, "; a rank needs ",
             human_bytes(memory), over_limit_text(memory, limits), "\n");
}

/// Logs the best layouts for options.world_size ranks and the requested details of the best one.
void plan_layouts(const PlanOptions& options, const Config& config, const PredictionInput& base, const Log& log) {
  const Hardware& hardware = base.hardware;
  const SearchLimits limits = make_search_limits(options, hardware);
  const SearchResult result = search_layouts(hardware, base.program, base.work, limits);
  if (result.best.empty()) fail_no_layout_fits(result, hardware, base.work, limits);
  const Candidate& best = result.preferred();
  const PredictionInput input{hardware, base.program, base.work, best.layout};
  if (options.explain) log.info(recipe_text(rule_of_thumb_layout(hardware, base.work, options.world_size), result));
  log.info(search_text(input, result) +
           describe_configured_layout(on_nodes_of(hardware, config), input, best.time, limits));
  if (const auto cost = estimate_training_cost(options, input, best.time)) log.info(training_text(options, *cost));
  if (options.explain) log.info(step_text(input, best.time) + roofline_text(input) + gains_text(upgrade_gains(input)));
  if (options.explain || options.failures.mtbf_hours > 0) log.info(save_text(input, save_time(input)));
  if (options.failures.mtbf_hours > 0) {
    Failures failures = options.failures;
    if (failures.save_seconds == 0) failures.save_seconds = save_time(input).seconds;
    log.info(failures_text(failure_loss(failures, options.world_size)));
    if (options.goodput) log.info(goodput_text(goodput_by_interval(input, best.time.seconds, options.failures)));
  }
  if (!options.svg.empty()) {
    const StepTimeline drawn = step_timeline(input, 4 * best.layout.pp);
    write_file_atomic(options.svg, draw_svg(drawn.schedule, drawn.timeline));
  }
  if (!options.html.empty()) write_file_atomic(options.html, step_html(input, best.time));
  if (!options.emit.empty()) {
    write_file_atomic(options.emit, print_config(without_unused_keys(apply_layout(config, best.layout))));
    log.info(str("the configuration with the best layout was written to ", options.emit,
                 best.layout.uses(OffloadTier::File) && config.optimizer.offload_folder.empty()
                     ? "; before training set its optimizer.offload_folder, on a disk"
                     : ""));
  }
}

/// Sets the document length from the options, if it matters.
void count_documents(const PlanOptions& options, const Config& config, Workload& work, const Log& log) {
  const bool counts = config.data.reset_attention_mask;
  check_input(
      counts || options.document_tokens == 0,
      "--document_tokens: applies only to data.reset_attention_mask, without which attention covers the entire sample");
  if (options.document_tokens > 0) work.document_tokens = options.document_tokens;
  if (counts && work.document_tokens == 0)
    log.warn(
        "data.reset_attention_mask: attention is predicted as if no document ended inside a sample, because the "
        "datasets have no accessible .json files that state the length of documents; set --document_tokens=N");
}

/// Rejects hardware described separately by number of ranks for comparisons of several numbers of ranks.
void check_hardware_for_worlds(const PlanOptions& options, const HardwareKind& kind) {
  const char* option = !options.scale.empty()              ? "--scale"
                       : options.should_minimize_devices() ? "--deadline_hours"
                                                           : nullptr;
  if (option == nullptr || !kind.depends_on_ranks()) return;
  std::vector<std::string> rank_counts;
  for (const auto& [ranks, ignored] : kind.by_ranks) rank_counts.push_back(std::to_string(ranks));
  fail(ExitCode::BadInput, option, ": --hardware=", options.hardware, " describes ", join(rank_counts, ", "),
       " ranks separately, because they share a host; select one of these with --world_size");
}

/// Reads the configuration and hardware that the arguments name and reports the errors of both. Returns std::nullopt
/// after --help.
std::optional<Config> read_all(Arguments args, const Usage& usage, PlanOptions& options, HardwareKind& kind,
                               const Log& log) {
  std::string problem;
  const auto load = [&](const PlanOptions& plan_options) {
    try {
      if (!plan_options.hardware.empty())
        kind = load_hardware(plan_options.hardware, find_installed_file(plan_options.hardware_folder));
    } catch (const Error& error) {
      problem = error.what();
    }
  };
  std::optional<Config> config;
  try {
    config = read_config_and_options(args, usage, options, log, [&](const PlanOptions& plan_options, const Config&) {
      load(plan_options);
      return read_config_text(plan_options.config);
    });
  } catch (const Error& error) {
    check_input(problem.empty(), error.what(), "\n", problem);
    throw;
  }
  check_input(problem.empty(), problem);
  return config;
}

/// Replaces the configuration of a run with stages by the configuration of the stage to plan.
void select_stage(const PlanOptions& options, Config& config, const Log& log) {
  if (config.stages.empty() && options.stage.empty()) return;
  check_input(options.emit.empty(), "--emit: does not apply to a run with stages; set the layout in [stage.parallel]");
  config = Config(stage_named(config, options.stage));
  if (!options.json)
    log.info(str(config.stage->title(), config.stage->stages > 1 ? "; --stage=NAME selects another" : ""));
}

/// Returns what to know about the predictions of a workload, one line each.
std::string notes(Implementation implementation, const Hardware& hardware, const Workload& work) {
  std::string text = low_precision_text(hardware, work);
  if (implementation == Implementation::MegatronCore)
    text +=
        "Megatron Core of 2026 with Transformer Engine, without overlap of data-parallel communication; only layouts "
        "that it has are considered, and memory is that of megatron_cpp\n";
  return text;
}

}  // namespace

ExitCode plan_command(Arguments args, Log& log) {
  const bool scales = !args.empty() && args.front() == "scale";
  if (scales) args = args.subspan(1);
  if (const std::string hint = find_hint(args); !hint.empty() && !is_help_request(args) && !is_options_request(args))
    fail(ExitCode::BadInput, hint);
  const Usage usage{
      .command = scales ? "megatron_cpp plan scale" : "megatron_cpp plan",
      .summary =
          "Finds the layouts of a model that train fastest on a cluster, with a cost model. plan scale CONFIG "
          "--world_size=N compares 1, 2, 4, ... N ranks. plan calibrate measures this host for the planner (see its "
          "--help).",
      .positional = {"config"},
      .required = {"config", "hardware"}};
  PlanOptions options;
  HardwareKind kind;
  std::optional<Config> config = read_all(args, usage, options, kind, log);
  if (!config) return ExitCode::Done;
  select_stage(options, *config, log);
  if (scales && options.scale.empty()) {
    check_input(options.world_size > 0,
                "plan scale: needs --world_size (compares 1, 2, 4, ... ranks) or --scale=64,96,128");
    options.scale = powers_of_two_up_to(std::exchange(options.world_size, 0));
  }
  check_options(options);
  check_hardware_for_worlds(options, kind);
  std::optional<RecordedRun> run;
  if (!options.from_run.empty()) run = read_recorded_run(options, *config);
  check_input(config->model.vocab_size > 0,
              "model.vocab_size: is missing; plan does not read the tokenizer; set it, or pass --model.vocab_size=N");
  if (run) kind = infer_hardware(options, *run, kind, log);
  const Hardware& hardware = kind.for_ranks(options.world_size);
  const KernelTraits program = kernel_traits(options.implementation);
  Workload work = make_workload(*config);
  check_low_precision_rates(hardware, work);
  check_implementation(options.implementation, unpredictable_settings(options.implementation, work));
  if (const std::string text = notes(options.implementation, hardware, work); !text.empty() && !options.json)
    log.info(text);
  work.expert_imbalance = options.expert_imbalance;
  count_documents(options, *config, work, log);
  const PredictionInput base{hardware, program, work, {}};
  const SearchLimits limits = make_search_limits(options, hardware);
  if (options.predict) {
    predict(options, on_nodes_of(hardware, *config), base, log);
    return ExitCode::Done;
  }
  if (!options.scale.empty())
    compare_world_sizes(options, base, limits, log);
  else if (options.should_minimize_devices())
    plan_for_deadline(options, base, limits, log);
  else
    plan_layouts(options, *config, base, log);
  return ExitCode::Done;
}

ExitCode plan_command(Arguments args, Log& log, const World& world) {
  if (!args.empty() && args[0] == "calibrate") return plan_calibrate_command(args.subspan(1), log, world);
  check_input(world.ranks.size() == 1, "megatron_cpp plan runs in one process, not on ", world.ranks.size(),
              " ranks; start it without mpirun or srun");
  return plan_command(args, log);
}

}  // namespace mcpp
