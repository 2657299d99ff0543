// Command megatron_cpp pretrain: the training job.
#include <atomic>
#include <span>

#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/param_group_check.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/train/train_stages.h"

namespace mcpp {
namespace {

struct PretrainOptions {
  std::string config;
  bool dry_run = false;
  i64 world_size = 0;
  PlanRequest plan;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML");
    visit("dry_run", self.dry_run,
          "perform all checks and print parameters, memory, layout and predicted step time, without training");
    visit("world_size", self.world_size,
          "with dry_run: number of ranks to check for, which need not exist; 0 = the ranks that were started",
          between(0, 1 << 20));
    PlanRequest::fields(self.plan, visit);
  }
};

void check_names_data(const DataConfig& data) {
  check_input(data.has_data(),
              "data.data_path: is missing; create a dataset with megatron_cpp preprocess, or set "
              "data.mock_data to measure speed without data");
}

/// Returns the beginning of messages about one stage; "" without stages.
std::string title(const Config& config) {
  return config.stage ? config.stage->title() + ": " : "";
}

/// Plans every stage of a run, or the run itself if it has none.
std::vector<PlannedRun> plan_stages(const Config& config, const PlanRequest& request, int world_size, const Log& log) {
  std::vector<PlannedRun> stages;
  for (Config& stage : training_configs(config)) {
    resolve_vocabulary(stage, log);
    PlannedRun planned = plan_run(stage, request, world_size);
    check_layout(planned.config, world_size);
    check_param_groups(planned.config);
    check_low_precision(planned.config, world_size);
    if (!planned.text.empty()) log.info(title(planned.config) + planned.text);
    if (!planned.warning.empty()) log.warn(title(planned.config) + planned.warning);
    stages.push_back(std::move(planned));
  }
  return stages;
}

/// Describes a run of `world_size` ranks and checks its memory: on these ranks, or, if `is_for_other_hosts`, on other
/// hosts.
void describe_and_check(const PlannedRun& run, int world_size, bool is_for_other_hosts, const World& world,
                        const Log& log) {
  const Config& config = run.config;
  // For ranks on other hosts the memory estimate uses all cores of this host, as its warning states.
  const Config on_nodes =
      with_dispatch_nodes(config, is_for_other_hosts ? run.node_ranks : world.ranks_of_node().size());
  log.info((config.stage ? config.stage->title() + "\n" : "") +
           describe_run(on_nodes, world_size, is_for_other_hosts ? 0 : world.cores_per_rank));
  if (is_for_other_hosts) {
    if (const std::string warning = memory_warning(on_nodes, world_size); !warning.empty()) log.warn(warning);
    return;
  }
  check_local_space(config, world.ranks);
  check_training_memory(config, world);
  check_training_disk(config, world.ranks);
  check_names_data(config.data);
}

/// Returns the stage of the run's newest checkpoint.
std::size_t first_stage(const std::vector<PlannedRun>& stages, const World& world, const Log& log) {
  if (stages.size() == 1) return 0;
  const std::vector<Config> configs = configs_of(stages);
  return stage_at(configs, newest_own_iteration(configs[0].checkpoint, world.ranks, log));
}

/// Compares the run with the checkpoint that it would start from, in the stage of that checkpoint.
void check_start(const std::vector<PlannedRun>& stages, const World& world, const Log& log) {
  const std::vector<Config> configs = configs_of(stages);
  std::size_t stage = first_stage(stages, world, log);
  while (true) {
    const Config& config = configs[stage];
    const auto progress = check_start_checkpoint(config, identify_datasets(config, world.ranks), world.ranks, log);
    const i64 found = progress ? progress->iteration : 0;
    if (!config.stage || config.stage->resumes_at(found)) return;
    stage = stage_at(configs, found);
  }
}

/// Opens the datasets of all stages after `first`, in which the run starts, so that none of them fails after days.
void check_later_stages(const std::vector<PlannedRun>& stages, std::size_t first, const World& world, const Log& log) {
  for (const PlannedRun& stage : std::span(stages).subspan(first + 1)) {
    log.info(stage.config.stage->title());
    identify_datasets(stage.config, world.ranks);
    check_data(stage.config, world, log);
  }
}

ExitCode dry_run(const std::vector<PlannedRun>& stages, const PretrainOptions& options, const World& world, Log& log) {
  for (const PlannedRun& stage : stages) {
    if (stage.config.stage) log.info(stage.config.stage->title());
    check_data(stage.config, world, log);
  }
  if (options.world_size > 0) return ExitCode::Done;  // on other hosts, whose folders are not visible
  if (stages[0].config.data.has_data()) check_start(stages, world, log);
  for (const PlannedRun& stage : stages) {
    const Session session = initialize(stage.config, world);
    if (stage.config.device.device == DeviceType::Cpu)
      log.info(title(stage.config) + describe_step_time(stage.config, world.ranks.size(), *session.device));
  }
  return ExitCode::Done;
}

}  // namespace

ExitCode pretrain_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp pretrain",
                    .summary = "Trains a model, resuming from the newest checkpoint if there is one.",
                    .positional = {"config"},
                    .required = {"config"}};
  PretrainOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_input(options.world_size == 0 || options.dry_run, "--world_size=", options.world_size,
              ": applies only to --dry_run; for a training run, set the number of ranks with mpirun -n or srun");
  check_identical_on_ranks("task", options.dry_run ? "dry run" : "training", world.ranks,
                           "pass every rank the same arguments");
  check_outputs(*config, world.ranks);
  const int world_size = options.world_size > 0 ? static_cast<int>(options.world_size) : world.ranks.size();
  if (!config->stages.empty()) {
    log.info(describe_stages(*config));
    check_identical_on_ranks("configuration", print_config(*config), world.ranks,
                             "pass every rank the same file and arguments");
  }
  const std::vector<PlannedRun> stages = plan_stages(*config, options.plan, world_size, log);
  for (const PlannedRun& stage : stages) describe_and_check(stage, world_size, options.world_size > 0, world, log);
  if (options.world_size == 0) check_save_folders(*config, world.ranks);
  if (options.dry_run) return dry_run(stages, options, world, log);
  const std::size_t first = first_stage(stages, world, log);
  check_later_stages(stages, first, world, log);
  const bool saves = !config->checkpoint.save.empty();
  std::atomic<bool> is_training = false;
  const SignalWatch signals(world.board, [&](int signal) {  // before any thread is started
    const char* reaction = saves ? "saving after this microbatch"
                                 : "stopping after this microbatch; nothing is saved, because checkpoint.save is empty";
    log.write_unbuffered(str("signal ", signal,
                             " received: ", is_training ? reaction : "stopping before the first iteration",
                             "; a second Ctrl-C ends the program immediately"));
  });
  return train_stages(stages, first, world, signals, log, [&] { is_training = true; });
}

}  // namespace mcpp
