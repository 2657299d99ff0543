#include "megatron_cpp/resume/checkpoint_saver.h"

#include <filesystem>

#include "base/io/file_system.h"
#include "base/machine.h"
#include "checkpoint/save/writer.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "megatron_cpp/resume/run_metrics_object.h"
#include "megatron_cpp/step/training_shards.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

/// Returns true if something is due at every `interval`-th iteration; 0 = never.
bool is_due_at(i64 interval, i64 iteration) {
  return interval > 0 && iteration % interval == 0;
}

}  // namespace

CheckpointSaver::CheckpointSaver(const RunContext& run, StoredRef<TrainingState> state,
                                 const TrainingProgress& progress, DataProvenance sources, const FolderLock* lock)
    : run_(run),
      state_(state),
      sources_(std::move(sources)),
      lock_(lock),
      staging_(make_async_copy_engine(*run.session.device)),
      saved_iteration_(progress.is_saved ? progress.iteration : -1) {
  prepare();
  const CheckpointConfig& checkpoint = run.config.checkpoint;
  Communicator& world = run.world();
  const auto continued = [&] { return continue_lineage(progress.lineage, progress.iteration, checkpoint.save).text(); };
  if (!checkpoint.save.empty()) lineage_ = Lineage::parse(broadcast_from_rank0(world, continued));
  if (checkpoint.local_save.empty()) return;
  const Path folder = local_target(checkpoint, world).folder;
  check_local_owner(checkpoint, {folder}, world);
  run_on_all_ranks(world, [&] { local_lock_ = std::make_unique<FolderLock>(folder, run.log, run.session.job); });
  if (checkpoint.local_replicas > 0) replicas_ = std::make_unique<LocalReplicas>(run);
}

/// Reserves the memory that asynchronous saves copy to, before the first of them.
void CheckpointSaver::prepare() {
  const i64 shared = run_.config.checkpoint.save_interval, local = run_.config.checkpoint.local_save_interval;
  if (!run_.config.checkpoint.async_save || shared + local == 0) return;
  const bool first_is_local = local > 0 && (shared == 0 || local < shared);
  staging_.prepare(first_is_local ? shards_to_load(state_) : shards_to_save(state_));
}

bool CheckpointSaver::is_due(i64 iteration) const {
  return is_due_at(run_.config.checkpoint.save_interval, iteration) ||
         is_due_at(run_.config.checkpoint.local_save_interval, iteration);
}

void CheckpointSaver::save(const TrainingProgress& progress, SaveObserver observer) {
  const bool is_local = !is_due_at(run_.config.checkpoint.save_interval, progress.iteration);
  if (run_.config.checkpoint.async_save)
    start(progress, is_local, std::move(observer));
  else
    save_synchronously(progress, is_local, std::move(observer));
}

void CheckpointSaver::wait_for_copy() {
  if (!in_flight_.save) return;
  const double start = steady_seconds();
  in_flight_.save->wait_for_copy();
  in_flight_.stall += steady_seconds() - start;
}

void CheckpointSaver::poll() {
  if (replicas_) replicas_->poll();
  if (!in_flight_.save) return;
  const double start = steady_seconds();
  const double busy = in_flight_.save->is_idle() ? 0 : 1;
  const bool all_wait = reduce_scalar(busy, ReduceOp::Max, run_.world(), host_) == 0;
  in_flight_.stall += steady_seconds() - start;
  if (all_wait) advance();
}

bool CheckpointSaver::must_save(const TrainingProgress& progress) const {
  return !run_.config.checkpoint.save.empty() && saved_iteration_ != progress.iteration;
}

void CheckpointSaver::save_and_wait(const TrainingProgress& progress, SaveObserver observer, bool is_interim,
                                    const char* hint) {
  save_synchronously(progress, /*is_local=*/false, std::move(observer), is_interim, hint);
}

RunState CheckpointSaver::describe(const TrainingProgress& progress, bool is_local, bool is_interim) {
  RunState run = run_state(run_.config, state_, progress);
  store_sources(sources_, run);
  if (is_interim) run.extra[kInterimName] = "true";
  if (!lineage_.branches.empty()) run.extra[kLineageName] = lineage_.text();
  if (is_local) mark_local(run, run_.config.checkpoint, run_.world());
  return run;
}

SaveTarget CheckpointSaver::target(bool is_local, SaveObserver observer) const {
  const CheckpointConfig& checkpoint = run_.config.checkpoint;
  SaveTarget target{.folder = checkpoint.save,
                    .retention = {.keep_latest_k = checkpoint.keep_latest_k,
                                  .save_retain_interval = checkpoint.save_retain_interval,
                                  .keeps_rollback_targets = run_.config.can_roll_back()}};
  if (in_use_) target.retention.in_use = in_use_();
  if (is_local) target = local_target(checkpoint, run_.world());
  target.lock = is_local ? local_lock_.get() : lock_;
  target.observer = std::move(observer);
  return target;
}

void CheckpointSaver::save_synchronously(const TrainingProgress& progress, bool is_local, SaveObserver observer,
                                         bool is_interim, const char* hint) {
  finish_save();
  const double start = steady_seconds();
  const std::vector<NamedShard> shards = is_local ? shards_to_load(state_) : shards_to_save(state_);
  HostCopies copies(shards);
  ProgressShardSource source(copies, run_.log, "saving");
  CheckpointSave save(target(is_local, observer), describe(progress, is_local, is_interim), run_.world(), run_.log,
                      files_);
  save.write(source);
  const Path path = save.gather_and_finish();
  if (!is_local) saved_iteration_ = progress.iteration;
  log_saved(progress.iteration, str("saved ", path.string(), " in ", human_seconds(steady_seconds() - start), hint));
  if (!is_local) return finish_shared_save(path);
  if (!replicas_) return;
  replicas_->start(path, std::move(observer));
  replicas_->finish();
}

void CheckpointSaver::start(const TrainingProgress& progress, bool is_local, SaveObserver observer) {
  const double start = steady_seconds();
  finish_save();
  Communicator& world = run_.world();
  run_on_all_ranks(world, [&] { staging_.begin(is_local ? shards_to_load(state_) : shards_to_save(state_)); });
  in_flight_ = {.save = std::make_unique<AsyncSave>(target(is_local, observer), describe(progress, is_local), staging_,
                                                    world, run_.log, files_),
                .start = start,
                .stall = steady_seconds() - start,
                .iteration = progress.iteration,
                .is_local = is_local,
                .observer = observer};
  if (!is_local) saved_iteration_ = progress.iteration;
}

/// Completes the save in flight, or advances it to its next stage.
void CheckpointSaver::advance() {
  const double start = steady_seconds();
  // The save may remove an older checkpoint, which is needed until the copies of the previous one are complete.
  if (in_flight_.is_local && replicas_) replicas_->finish();
  const bool has_ended = in_flight_.save->advance();
  in_flight_.stall += steady_seconds() - start;
  if (!has_ended) return;
  InFlight ended = std::exchange(in_flight_, {});
  staging_.end();
  log_saved(ended.iteration,
            str("saved ", ended.save->path().string(), " in ", human_seconds(steady_seconds() - ended.start),
                ", of which training waited for ", human_seconds(ended.stall)));
  if (!ended.is_local) return finish_shared_save(ended.save->path());
  if (replicas_) replicas_->start(ended.save->path(), std::move(ended.observer));
}

void CheckpointSaver::finish_shared_save(const Path& path) const {
  if (run_.world().rank() == 0) store_metrics(run_.config, run_.log);
  if (listener_) listener_(path);
}

void CheckpointSaver::log_saved(i64 iteration, const std::string& text) const {
  run_.logger.log_event({.kind = RunEvent::Kind::Save, .iteration = iteration, .text = text});
}

void CheckpointSaver::finish_save() {
  if (!in_flight_.save) return;
  run_.session.enter(Activity::Saving, saved_iteration_);  // may take long in the middle of the run
  while (in_flight_.save) advance();
}

void CheckpointSaver::finish() {
  finish_save();
  if (!replicas_ || !replicas_->is_in_flight()) return;
  run_.session.enter(Activity::Saving, saved_iteration_);
  replicas_->finish();
}

void CheckpointSaver::remove_parts_in_memory() {
  if (run_.config.checkpoint.local_save.empty()) return;
  finish();
  std::vector<Path> folders = replicas_ ? replicas_->folders() : std::vector<Path>();
  folders.push_back(local_target(run_.config.checkpoint, run_.world()).folder);
  run_on_all_ranks(run_.world(), [&] {
    for (const Path& folder : folders) {
      if (!std::filesystem::exists(folder) || !is_memory_backed(folder)) continue;
      std::error_code error;
      std::filesystem::remove_all(folder, error);
      if (error) run_.log.warn_from_any_rank(str("cannot remove ", folder.string(), ": ", error.message()));
    }
    std::error_code ignored;
    std::filesystem::remove(folders.back().parent_path(), ignored);  // if it is empty
    std::filesystem::remove(run_.config.checkpoint.local_save, ignored);
  });
}

}  // namespace mcpp
