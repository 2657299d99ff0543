// Command megatron_cpp pretrain: the training job.
#include <atomic>

#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/param_group_check.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/train/trainer.h"

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
  resolve_vocabulary(*config, log);
  const PlannedRun planned = plan_run(*config, options.plan, world_size);
  *config = planned.config;
  check_layout(*config, world_size);
  check_param_groups(*config);
  if (!planned.text.empty()) log.info(planned.text);
  if (!planned.warning.empty()) log.warn(planned.warning);
  // For ranks on other hosts the memory estimate uses all cores of this host, as its warning states.
  log.info(describe_run(*config, world_size, options.world_size > 0 ? 0 : world.cores_per_rank));
  if (options.world_size == 0) {
    check_training_memory(*config, world);
    check_training_disk(*config, world.ranks);
  } else if (const std::string warning = memory_warning(*config, world_size); !warning.empty()) {
    log.warn(warning);
  }
  if (options.world_size == 0) {
    check_names_data(config->data);
    check_save_folders(*config, world.ranks);
  }
  if (options.dry_run) {
    check_data(*config, world, log);
    if (options.world_size > 0) return ExitCode::Done;  // on other hosts, whose folders are not visible
    if (config->data.has_data())
      check_start_checkpoint(*config, identify_datasets(*config, world.ranks), world.ranks, log);
    const Session session = initialize(*config, world);
    if (config->device.device == DeviceType::Cpu) log.info(describe_step_time(*config, world_size, *session.device));
    return ExitCode::Done;
  }
  const bool saves = !config->checkpoint.save.empty();
  std::atomic<bool> is_training = false;
  const SignalWatch signals(world.board, [&](int signal) {  // before any thread is started
    const char* reaction = saves ? "saving after this microbatch"
                                 : "stopping after this microbatch; nothing is saved, because checkpoint.save is empty";
    log.write_unbuffered(str("signal ", signal,
                             " received: ", is_training ? reaction : "stopping before the first iteration",
                             "; a second Ctrl-C ends the program immediately"));
  });
  Session session = initialize(*config, world);
  const std::unique_ptr<Trainer> trainer = make_trainer(*config, session, signals, log, planned.predicted);
  is_training = true;
  return trainer->train();
}

}  // namespace mcpp
