#include "megatron_cpp/train/train_stages.h"

#include "checkpoint/directory/lock.h"
#include "megatron_cpp/config/stages.h"
#include "megatron_cpp/resume/checkpointing.h"

namespace mcpp {
namespace {

/// Returns the configuration of a stage that continues the stage before it in this process: it starts from that stage's
/// checkpoint, not from the one that the run started from.
Config continued(Config config) {
  config.checkpoint.load.clear();
  config.checkpoint.finetune = false;
  config.checkpoint.exit_on_missing_checkpoint = false;
  return config;
}

}  // namespace

ExitCode train_stages(const std::vector<PlannedRun>& stages, std::size_t first, const World& world,
                      const SignalWatch& signals, const Log& log, const std::function<void()>& on_training) {
  const std::vector<Config> configs = configs_of(stages);
  std::size_t stage = first;
  bool is_continued = false;
  std::optional<std::unique_ptr<FolderLock>> lock;  // held between stages, too; null on ranks other than 0
  while (true) {
    const Config config = is_continued ? continued(configs[stage]) : configs[stage];
    Session session = initialize(config, world);
    if (!lock) lock = lock_save_folder(config, session, log);
    const StartedTraining started =
        make_trainer(config, session, signals, log, stages[stage].predicted, lock->get(), is_continued);
    if (!started.trainer) {  // a different checkpoint than the newest one was loaded
      stage = stage_at(configs, started.iteration);
      continue;
    }
    on_training();
    const ExitCode code = started.trainer->train();
    const bool is_last = stage + 1 == stages.size();
    if (code != ExitCode::Done || !started.trainer->has_completed_stage() || is_last) return code;
    ++stage;
    is_continued = true;
  }
}

}  // namespace mcpp
