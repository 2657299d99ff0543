// megatron_cpp pretrain: the main job.
#include "megatron_cpp/commands.h"
#include "megatron_cpp/layout.h"
#include "megatron_cpp/plan.h"
#include "megatron_cpp/trainer.h"
#include "megatron_cpp/vocabulary.h"

namespace mcpp {
namespace {

struct PretrainOptions {
  std::string config;
  bool dry_run = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML");
    visit("dry_run", self.dry_run,
          "check everything and print parameters, memory and the run's plan, without training");
  }
};

}  // namespace

ExitCode pretrain_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp pretrain",
                    .summary = "Trains a model, resuming from the newest checkpoint if there is one.",
                    .positional = {"config"},
                    .required = {"config"}};
  PretrainOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  resolve_vocabulary(*config, log);
  check_layout(*config, world.ranks.size());
  log.info(run_plan(*config, world.ranks.size()));
  if (options.dry_run) {
    check_data(*config, log);
    return ExitCode::Done;
  }
  check_input(!config->data.data_path.empty() || !config->data.train_data_path.empty(),
              "data.data_path: names no dataset to train on; make one with megatron_cpp preprocess");
  const SignalWatch signals;  // before there are threads
  Session session = initialize(*config, world);
  return Trainer(*config, session, signals, log).train();
}

}  // namespace mcpp
