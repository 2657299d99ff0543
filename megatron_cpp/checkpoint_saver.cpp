#include "megatron_cpp/checkpoint_saver.h"

#include "checkpoint/exchange.h"
#include "megatron_cpp/local_checkpoint.h"
#include "megatron_cpp/training_shards.h"
#include "parallel/scalar.h"

namespace mcpp {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool is_due(i64 interval, i64 iteration) {
  return interval > 0 && iteration % interval == 0;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const Config& config, const TrainingState& state, const TrainingProgress& progress,
                                 std::string tokenizer_checksum, Session& session, const Log& log,
                                 const FileSystem& files)
    : config_(config),
      state_(state),
      tokenizer_checksum_(std::move(tokenizer_checksum)),
      session_(session),
      log_(log),
      files_(files),
      saved_iteration_(progress.is_only_local ? -1 : progress.iteration) {
  if (config.checkpoint.local_save.empty()) return;
  Communicator& world = session.parallel.world;
  run_together(world, [&] {
    local_lock_ = std::make_unique<FolderLock>(local_target(config.checkpoint, world).folder, log);
    return std::string();
  });
}

void CheckpointSaver::after_step(const TrainingProgress& progress) {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (in_flight_.save && is_written_everywhere()) finish();
  if (is_due(checkpoint.save_interval, progress.iteration))
    save(progress, /*local=*/false, checkpoint.async_save);
  else if (is_due(checkpoint.local_save_interval, progress.iteration))
    save(progress, /*local=*/true, checkpoint.async_save);
}

void CheckpointSaver::save_last(const TrainingProgress& progress) {
  finish();
  const bool is_saved = saved_iteration_ == progress.iteration;
  if (!config_.checkpoint.save.empty() && !is_saved) save(progress, /*local=*/false, /*beside_training=*/false);
}

RunState CheckpointSaver::describe(const TrainingProgress& progress, bool local) {
  RunState run = run_state(config_, state_, progress);
  run.tokenizer_checksum = tokenizer_checksum_;
  if (local) mark_local(run, config_.checkpoint, session_.parallel.world);
  return run;
}

void CheckpointSaver::save(const TrainingProgress& progress, bool local, bool beside_training) {
  const auto start = Clock::now();
  finish();
  const CheckpointConfig& checkpoint = config_.checkpoint;
  Communicator& world = session_.parallel.world;
  const SaveTarget target = local ? local_target(checkpoint, world)
                                  : SaveTarget{.folder = checkpoint.save,
                                               .retention = {.keep_last = checkpoint.keep_last,
                                                             .save_retain_interval = checkpoint.save_retain_interval}};
  const std::vector<NamedShard> shards = local ? shards_to_load(state_) : shards_to_save(state_);
  if (!local) saved_iteration_ = progress.iteration;
  if (!beside_training) {
    HostCopies source(shards);
    CheckpointSave save(target, describe(progress, local), world, log_, files_);
    save.write(source);
    const Path path = save.finish();
    log_.info(str("saved ", path.string(), " in ", human_seconds(seconds_since(start))));
    return;
  }
  run_together(world, [&] {
    staging_.copy(shards);
    return std::string();
  });
  in_flight_ = {.save = std::make_unique<AsyncSave>(target, describe(progress, local), staging_, world, log_, files_),
                .start = start,
                .stall = seconds_since(start)};
}

bool CheckpointSaver::is_written_everywhere() {
  const double unwritten = in_flight_.save->is_written() ? 0 : 1;
  return reduce_scalar(unwritten, ReduceOp::Max, session_.parallel.world, *session_.device) == 0;
}

/// Waits for the save in flight, if there is one.
void CheckpointSaver::finish() {
  if (!in_flight_.save) return;
  const auto start = Clock::now();
  const std::unique_ptr<AsyncSave> save = std::move(in_flight_.save);
  const Path path = save->finish();
  log_.info(str("saved ", path.string(), " in ", human_seconds(seconds_since(in_flight_.start)),
                ", of which the training waited for ", human_seconds(in_flight_.stall + seconds_since(start))));
}

}  // namespace mcpp
