// Command megatron_cpp bench quality: trains variants of a configuration with several seeds and compares their losses.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/bench/quality.h"
#include "megatron_cpp/bench/quality_results.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/config/variants.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/param_group_check.h"
#include "megatron_cpp/train/train_stages.h"

namespace mcpp {
namespace {

struct QualityOptions {
  std::string config;
  std::string variants;
  std::string results;
  std::string svg;
  i64 seeds = 4;
  i64 branch_iteration = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML");
    visit("variants", self.variants,
          "file with a [[variant]] table per variant: name, max_difference, and the keys that it changes, as "
          "[variant.training]; the first variant is the baseline");
    visit("results", self.results,
          "file of JSON lines to which finished runs are added; runs that it already has are not repeated");
    visit("svg", self.svg, "SVG file to write a chart to");
    visit("seeds", self.seeds, "number of seeds, from training.seed on", between(1, 10000));
    visit("branch_iteration", self.branch_iteration,
          "iteration at which the variants of a seed branch off a common run of the first variant; 0 = they start "
          "where the configuration starts",
          between(0, 1e12));
  }
};

/// Reads the variants of `config` from the file --variants.
std::vector<Variant> load_variants(const Config& config, const QualityOptions& options) {
  const ConfigText text = read_config_text(options.variants);
  return parse_variants(config, text.toml, text.name);
}

/// Throws BadInput with every problem of the options.
void check_options(const QualityOptions& options, const Config& config) {
  std::vector<std::string> problems;
  const i64 seed = config.training.seed;
  if (options.seeds < 2) problems.push_back("--seeds=1: one seed has no standard error; use at least 2");
  if (seed + options.seeds - 1 > 4294967295)
    problems.push_back(str("--seeds=", options.seeds, ": the last seed, training.seed + ", options.seeds - 1, " = ",
                           seed + options.seeds - 1, ", exceeds 4294967295; lower one of them"));
  if (!config.stages.empty()) problems.push_back("bench quality: does not support stages; remove the [[stage]] tables");
  if (options.branch_iteration > 0 && !config.checkpoint.load.empty())
    problems.push_back("--branch_iteration: cannot be combined with checkpoint.load; remove one of them");
  const Path folder = Path(options.svg).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    problems.push_back(str("--svg=", options.svg, ": no such folder: ", folder.string()));
  check_problems(problems);
}

/// Throws BadInput with every reason why a run with this configuration has no result to compare.
void check_has_result(const Config& config) {
  std::vector<std::string> problems;
  if (!config.data.has_data())
    problems.push_back("data.data_path: is missing; bench quality needs text to train on, so set it");
  if (config.training.eval_iters == 0)
    problems.push_back("training.eval_iters: is 0, so that no held-out loss is measured; set it to at least 1");
  if (config.data.multiple_validation_sets)
    problems.push_back("data.multiple_validation_sets: bench quality compares a single loss; remove it");
  if (config.can_roll_back())
    problems.push_back(
        "training.nan_policy, training.spike_policy: bench quality saves no checkpoints to roll back to; set both to "
        "something other than rollback");
  check_problems(problems);
}

/// Trainings of a comparison. All member functions are collective.
class QualityBench {
 public:
  QualityBench(const QualityOptions& options, std::vector<Variant> variants, const World& world,
               const SignalWatch& signals, const Log& log)
      : options_(options),
        variants_(std::move(variants)),
        world_(world),
        signals_(signals),
        log_(log),
        quiet_(world.ranks.rank() + 1),  // never rank 0: the log lines of many runs would hide the results
        first_seed_(variants_.front().config.training.seed) {}

  /// Throws BadInput or OutOfMemory if any run could not start or resume.
  void check();
  /// Executes the runs that are missing in the results. Returns false if a signal stopped them.
  bool run();
  /// Returns the results of all runs, on rank 0.
  QualityComparison comparison() const;

 private:
  /// Returns the path of a temporary file or folder next to the results.
  Path side_file(const std::string& suffix) const { return options_.results + suffix; }
  Path branch_folder(i64 seed) const { return side_file(str(".branch_", seed)); }
  /// Returns the configuration of one run.
  Config run_config(const Variant& variant, i64 seed) const;
  /// Returns the configuration of the common first part of all runs with a seed.
  Config branch_config(i64 seed) const;
  /// Returns a run without results.
  QualityRun planned_run(const Variant& variant, i64 seed) const;
  bool is_finished(const Variant& variant, i64 seed) const;
  void check_variant(Variant& variant, const Log& log);
  void check_start(const Variant& variant) const;
  /// Trains with all variants that are not finished. Returns false if a signal stopped it.
  bool run_seed(i64 seed);
  /// Trains until the branch iteration, unless this was done before.
  bool run_branch(i64 seed);
  bool run_variant(const Variant& variant, i64 seed);
  /// Trains, and stores the reason in `failure` if training fails. Returns false if a signal stopped it.
  bool train(const Config& config, std::string& failure) const;
  std::string progress_line(const QualityRun& run) const;

  const QualityOptions& options_;
  std::vector<Variant> variants_;
  const World& world_;
  const SignalWatch& signals_;
  const Log& log_;
  const Log quiet_;
  i64 first_seed_;
  std::optional<QualityResults> results_;  // on rank 0
};

Config QualityBench::run_config(const Variant& variant, i64 seed) const {
  Config config = variant.config;
  config.training.seed = seed;
  config.training.exit_interval = 0;
  config.training.exit_duration_in_mins = 0;
  const CheckpointConfig& checkpoint = variant.config.checkpoint;
  config.checkpoint = {};
  config.checkpoint.load = options_.branch_iteration > 0 ? branch_folder(seed).string() : checkpoint.load;
  config.checkpoint.finetune = checkpoint.finetune;
  config.checkpoint.exit_on_missing_checkpoint = !config.checkpoint.load.empty();
  config.checkpoint.allow_changed_keys = checkpoint.allow_changed_keys;
  if (!config.checkpoint.load.empty()) {
    std::vector<std::string>& allowed = config.checkpoint.allow_changed_keys;
    allowed.emplace_back("training.seed");
    for (const Difference& difference : differences(variants_.front().config, variant.config))
      allowed.push_back(difference.key);
  }
  config.logging = {};
  config.logging.log_interval = variant.config.logging.log_interval;
  config.logging.metrics_path = side_file(".metrics").string();
  config.logging.peak_tflops = 1;  // measuring it would take longer than a small run
  return config;
}

Config QualityBench::branch_config(i64 seed) const {
  Config config = run_config(variants_.front(), seed);
  config.checkpoint = {};
  config.checkpoint.save = branch_folder(seed).string();
  config.training.exit_interval = options_.branch_iteration;
  config.training.eval_iters = 0;
  config.data.full_validation = false;
  return config;
}

QualityRun QualityBench::planned_run(const Variant& variant, i64 seed) const {
  QualityRun run{.variant = variant.name, .seed = seed, .curve = {}, .settings = run_settings(variant.config)};
  if (options_.branch_iteration > 0) run.settings["branch_iteration"] = str(options_.branch_iteration);
  return run;
}

bool QualityBench::is_finished(const Variant& variant, i64 seed) const {
  return broadcast_from_rank0(world_.ranks, [&] { return results_->contains(planned_run(variant, seed)); });
}

void QualityBench::check() {
  for (Variant& variant : variants_) {
    try {
      check_variant(variant, &variant == &variants_.front() ? log_ : quiet_);
    } catch (const Error& error) {
      fail(error.code(), "variant ", variant.name, ": ", error.what());
    }
  }
  run_on_rank0(world_.ranks, [&] {
    const Path folder = Path(options_.results).parent_path();
    if (!folder.empty()) mcpp::create_directories(folder);
    results_.emplace(options_.results);
    bool is_complete = true;
    for (const Variant& variant : variants_)
      for (i64 seed = first_seed_; seed < first_seed_ + options_.seeds; ++seed)
        is_complete = results_->contains(planned_run(variant, seed)) && is_complete;
    if (!is_complete) results_->add_start();
  });
}

void QualityBench::check_variant(Variant& variant, const Log& log) {
  Config& config = variant.config;
  check_has_result(config);
  resolve_vocabulary(config, log);
  check_layout(config, world_.ranks.size());
  check_param_groups(config);
  check_low_precision(config, world_.ranks.size());
  check_training_memory(config, world_);
  check_training_disk(config, world_.ranks);
  const Datasets datasets = dataset_provider(config, config.training_length().samples,
                                             SharedIndexRanks(world_.ranks, world_.ranks_of_node()), log);
  check_input(!datasets.validation.empty(),
              "data.split, data.valid_data_path: there is no held-out text; bench quality compares its loss");
  check_start(variant);
}

void QualityBench::check_start(const Variant& variant) const {
  const Config config = run_config(variant, first_seed_);
  const i64 end = config.training_end().iterations, branch = options_.branch_iteration;
  if (branch > 0) {
    check_input(branch < end, "--branch_iteration=", branch, ": must be less than the length of the runs, ", end,
                " iterations");
    return check_same_run(branch_config(first_seed_), config, "the common run", quiet_);
  }
  if (config.checkpoint.load.empty()) return;
  const auto progress = check_start_checkpoint(config, identify_datasets(config, world_.ranks), world_.ranks, quiet_);
  const i64 iteration = progress ? progress->iteration : 0;
  check_input(iteration < config.training_end(iteration, progress ? progress->consumed_samples : 0).iterations,
              "checkpoint.load: ", config.checkpoint.load, " has finished ", iteration,
              " iterations, so that nothing is left to train; set training.train_iters higher");
}

bool QualityBench::run() {
  for (i64 seed = first_seed_; seed < first_seed_ + options_.seeds; ++seed)
    if (!run_seed(seed)) return false;
  return true;
}

bool QualityBench::run_seed(i64 seed) {
  for (const Variant& variant : variants_) {
    if (is_finished(variant, seed)) continue;
    if (!run_branch(seed) || !run_variant(variant, seed)) return false;
  }
  run_on_rank0(world_.ranks, [&] { std::filesystem::remove_all(branch_folder(seed)); });
  return true;
}

bool QualityBench::run_branch(i64 seed) {
  if (options_.branch_iteration == 0) return true;
  const Config config = branch_config(seed);
  if (newest_own_iteration(config.checkpoint, world_.ranks, quiet_) == options_.branch_iteration) return true;
  std::string failure;
  const bool is_done = train(config, failure);
  if (!failure.empty())
    fail(ExitCode::TrainingFailed, "variant ", variants_.front().name, ", seed ", seed,
         ": failed before --branch_iteration: ", failure);
  return is_done;
}

bool QualityBench::run_variant(const Variant& variant, i64 seed) {
  const Config config = run_config(variant, seed);
  const double start = steady_seconds();
  QualityRun run = planned_run(variant, seed);
  if (!train(config, run.failure)) return false;
  run.seconds = steady_seconds() - start;
  run_on_rank0(world_.ranks, [&] {
    run.curve = read_held_out_losses(config.logging.metrics_path);
    std::filesystem::remove(config.logging.metrics_path);
    MCPP_CHECK(!run.curve.empty() || !run.failure.empty(), "no evaluation in ", config.logging.metrics_path);
    if (run.failure.empty() && !std::isfinite(run.loss())) run.failure = "the held-out loss is not finite";
    std::erase_if(run.curve, [](const HeldOutLoss& point) { return !std::isfinite(point.loss); });
    results_->add(run);
    log_.info(progress_line(run));
  });
  return true;
}

bool QualityBench::train(const Config& config, std::string& failure) const {
  run_on_rank0(world_.ranks, [&] { std::filesystem::remove(config.logging.metrics_path); });
  try {
    return train_stages({{.config = config, .text = {}, .warning = {}}}, /*first=*/0, world_, signals_, quiet_,
                        [] {}) != ExitCode::Preempted;
  } catch (const Error& error) {
    if (error.code() != ExitCode::TrainingFailed) throw;
    failure = error.what();
    return true;
  }
}

QualityComparison QualityBench::comparison() const {
  QualityComparison comparison;
  for (const Variant& variant : variants_) {
    comparison.variants.push_back({variant.name, variant.max_difference});
    for (const QualityRun& run : results_->runs())
      if (run.variant == variant.name && run.seed >= first_seed_ && run.seed < first_seed_ + options_.seeds)
        comparison.runs.push_back(run);
  }
  return comparison;
}

std::string QualityBench::progress_line(const QualityRun& run) const {
  const QualityComparison all = comparison();
  const QualityRun* base = all.find(all.baseline().name, run.seed);
  std::string text = str("run ", all.runs.size(), " of ", variants_.size() * static_cast<std::size_t>(options_.seeds),
                         ": ", run.variant, ", seed ", run.seed, ": ");
  if (!run.failure.empty()) return text + "failed: " + run.failure;
  text += "loss " + fixed(run.loss(), 4);
  if (base != nullptr && run.variant != all.baseline().name) {
    text += str(" (", signed_percent(percent_difference(run.loss(), base->loss())), ")");
  }
  return str(text, ", ", human_seconds(run.seconds));
}

}  // namespace

ExitCode bench_quality_command(Arguments args, Log& log, const World& world) {
  const Usage usage{
      .command = "megatron_cpp bench quality",
      .summary =
          "Trains variants of a configuration with several seeds, from common initial weights or a common "
          "checkpoint (checkpoint.load),\nand prints the differences of their held-out losses with standard "
          "errors. Start the same command again to continue.",
      .positional = {"config"},
      .required = {"config", "variants", "results"}};
  QualityOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_options(options, *config);
  std::vector<Variant> variants = load_variants(*config, options);
  const SignalWatch signals(world.board, [&](int signal) {  // before any thread is started
    log.write_unbuffered(str("signal ", signal, " received: stopping after this microbatch; ", options.results,
                             " has the finished runs; start the same command again to continue"));
  });
  QualityBench bench(options, std::move(variants), world, signals, log);
  bench.check();
  if (!bench.run()) return ExitCode::Preempted;
  run_on_rank0(world.ranks, [&] {
    const QualityComparison comparison = bench.comparison();
    log.info("\n" + quality_table(comparison));
    if (!options.svg.empty())
      write_file_atomic(options.svg, quality_chart(comparison, str(Path(options.config).filename().string(), ", ",
                                                                   options.seeds, " seeds")));
  });
  return ExitCode::Done;
}

}  // namespace mcpp
