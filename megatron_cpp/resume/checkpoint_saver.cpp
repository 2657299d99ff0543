#include "megatron_cpp/resume/checkpoint_saver.h"

#include "checkpoint/save/writer.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "megatron_cpp/step/training_shards.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns true if something is due at every `interval`-th iteration; 0 = never.
bool is_due_at(i64 interval, i64 iteration) {
  return interval > 0 && iteration % interval == 0;
}

}  // namespace

CheckpointSaver::CheckpointSaver(StoredRef<Config> config, StoredRef<TrainingState> state,
                                 const TrainingProgress& progress, DataProvenance sources, Session& session,
                                 StoredRef<Log> log, StoredRef<FileSystem> files, const FolderLock* lock)
    : config_(config),
      state_(state),
      sources_(std::move(sources)),
      session_(session),
      log_(log),
      files_(files),
      lock_(lock),
      staging_(make_async_copy_engine(*session.device)),
      saved_iteration_(progress.is_saved ? progress.iteration : -1) {
  prepare();
  Communicator& world = session.parallel.world;
  const auto continued = [&] {
    return continue_lineage(progress.lineage, progress.iteration, config_.checkpoint.save).text();
  };
  if (!config_.checkpoint.save.empty()) lineage_ = Lineage::parse(broadcast_from_rank0(world, continued));
  if (config_.checkpoint.local_save.empty()) return;
  check_local_owner(config_.checkpoint, world);
  run_on_all_ranks(world, [&] {
    local_lock_ = std::make_unique<FolderLock>(local_target(config_.checkpoint, world).folder, log_, session.job);
    return std::string();
  });
}

/// Reserves the memory that asynchronous saves copy to, before the first of them.
void CheckpointSaver::prepare() {
  const i64 shared = config_.checkpoint.save_interval, local = config_.checkpoint.local_save_interval;
  if (!config_.checkpoint.async_save || shared + local == 0) return;
  const bool first_is_local = local > 0 && (shared == 0 || local < shared);
  staging_.prepare(first_is_local ? shards_to_load(state_) : shards_to_save(state_));
}

bool CheckpointSaver::is_due(i64 iteration) const {
  return is_due_at(config_.checkpoint.save_interval, iteration) ||
         is_due_at(config_.checkpoint.local_save_interval, iteration);
}

void CheckpointSaver::save(const TrainingProgress& progress, SaveObserver observer) {
  const bool is_local = !is_due_at(config_.checkpoint.save_interval, progress.iteration);
  if (config_.checkpoint.async_save)
    start(progress, is_local, std::move(observer));
  else
    save_synchronously(progress, is_local, std::move(observer));
}

void CheckpointSaver::wait_for_copy() {
  if (!in_flight_.save) return;
  const auto start = Clock::now();
  in_flight_.save->wait_for_copy();
  in_flight_.stall += seconds_since(start);
}

void CheckpointSaver::poll() {
  if (!in_flight_.save) return;
  const auto start = Clock::now();
  const double busy = in_flight_.save->is_idle() ? 0 : 1;
  const bool all_wait = reduce_scalar(busy, ReduceOp::Max, session_.parallel.world, host_) == 0;
  in_flight_.stall += seconds_since(start);
  if (all_wait) advance();
}

bool CheckpointSaver::must_save(const TrainingProgress& progress) const {
  return !config_.checkpoint.save.empty() && saved_iteration_ != progress.iteration;
}

void CheckpointSaver::save_and_wait(const TrainingProgress& progress, SaveObserver observer, bool is_interim,
                                    const char* hint) {
  save_synchronously(progress, /*is_local=*/false, std::move(observer), is_interim, hint);
}

RunState CheckpointSaver::describe(const TrainingProgress& progress, bool is_local, bool is_interim) {
  RunState run = run_state(config_, state_, progress);
  store_sources(sources_, run);
  if (is_interim) run.extra[kInterimName] = "true";
  if (!lineage_.branches.empty()) run.extra[kLineageName] = lineage_.text();
  if (is_local) mark_local(run, config_.checkpoint, session_.parallel.world);
  return run;
}

SaveTarget CheckpointSaver::target(bool is_local, SaveObserver observer) const {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  SaveTarget target{.folder = checkpoint.save,
                    .retention = {.keep_latest_k = checkpoint.keep_latest_k,
                                  .save_retain_interval = checkpoint.save_retain_interval,
                                  .keeps_rollback_targets = config_.can_roll_back()}};
  if (is_local) target = local_target(checkpoint, session_.parallel.world);
  target.lock = is_local ? local_lock_.get() : lock_;
  target.observer = std::move(observer);
  return target;
}

void CheckpointSaver::save_synchronously(const TrainingProgress& progress, bool is_local, SaveObserver observer,
                                         bool is_interim, const char* hint) {
  finish();
  const auto start = Clock::now();
  const std::vector<NamedShard> shards = is_local ? shards_to_load(state_) : shards_to_save(state_);
  HostCopies copies(shards);
  ProgressShardSource source(copies, log_, "saving");
  CheckpointSave save(target(is_local, std::move(observer)), describe(progress, is_local, is_interim),
                      session_.parallel.world, log_, files_);
  save.write(source);
  const Path path = save.gather_and_finish();
  if (!is_local) saved_iteration_ = progress.iteration;
  notify(progress.iteration, str("saved ", path.string(), " in ", human_seconds(seconds_since(start)), hint));
}

void CheckpointSaver::start(const TrainingProgress& progress, bool is_local, SaveObserver observer) {
  const auto start = Clock::now();
  finish();
  Communicator& world = session_.parallel.world;
  run_on_all_ranks(world, [&] {
    staging_.begin(is_local ? shards_to_load(state_) : shards_to_save(state_));
    return std::string();
  });
  in_flight_ = {.save = std::make_unique<AsyncSave>(target(is_local, std::move(observer)), describe(progress, is_local),
                                                    staging_, world, log_, files_),
                .start = start,
                .stall = seconds_since(start),
                .iteration = progress.iteration};
  if (!is_local) saved_iteration_ = progress.iteration;
}

/// Completes the save in flight, or advances it to its next stage.
void CheckpointSaver::advance() {
  const auto start = Clock::now();
  const bool has_ended = in_flight_.save->advance();
  in_flight_.stall += seconds_since(start);
  if (!has_ended) return;
  const InFlight ended = std::exchange(in_flight_, {});
  staging_.end();
  notify(ended.iteration, str("saved ", ended.save->path().string(), " in ", human_seconds(seconds_since(ended.start)),
                              ", of which the training waited for ", human_seconds(ended.stall)));
}

void CheckpointSaver::notify(i64 iteration, const std::string& text) const {
  log_.info(text);
  if (listener_) listener_(iteration, text);
}

void CheckpointSaver::finish() {
  if (!in_flight_.save) return;
  session_.enter(Activity::Saving, saved_iteration_);  // may take long in the middle of the training
  while (in_flight_.save) advance();
}

}  // namespace mcpp
