#include "checkpoint/save/writer.h"

#include <stdio.h>

#include <chrono>
#include <map>
#include <utility>

#include "base/machine.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "base/system_error.h"
#include "base/utc_time.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/run_folder.h"
#include "checkpoint/save/shard_file.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Returns the name of a rank's file. `save_id`, unless "", distinguishes it from the file of another save of the same
/// iteration.
std::string shard_file_name(int rank, int size, const std::string& save_id) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "shard_%05d-of-%05d", rank, size);
  return str(text.data(), save_id.empty() ? "" : "-", save_id, ".h5");
}

/// Adds the tensors in the file of one rank to `tensors`.
void merge_part(Manifest part, std::size_t rank, Manifest& manifest, std::map<std::string, TensorEntry>& tensors) {
  for (TensorEntry& tensor : part.tensors) {
    TensorEntry& merged =
        tensors.try_emplace(tensor.name, TensorEntry{tensor.name, tensor.dtype, tensor.global, {}}).first->second;
    check_input(merged.dtype == tensor.dtype && merged.global == tensor.global, "rank ", rank, " holds ", tensor.name,
                " as ", name_of(tensor.dtype), " ", tensor.global, "; a different rank holds it as ",
                name_of(merged.dtype), " ", merged.global);
    for (ShardEntry& shard : tensor.shards) {
      shard.file = static_cast<i64>(manifest.files.size());
      merged.shards.push_back(std::move(shard));
    }
  }
  manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
}

}  // namespace

CheckpointSave::CheckpointSave(SaveTarget target, RunState state, Communicator& world, StoredRef<Log> log,
                               StoredRef<FileSystem> files)
    : target_(std::move(target)), state_(std::move(state)), world_(world), log_(log), files_(files) {
  run_on_all_ranks(world_, [&] {
    if (is_leader()) make_directory();
  });
  const std::string created = broadcast_from_rank0(world_, [&] { return is_remote() ? save_id_ : staging_.string(); });
  if (is_remote()) {
    save_id_ = created;
    run_on_all_ranks(world_, [&] { make_local_directory(); });
  } else if (!is_leader()) {
    staging_ = created;
  }
}

bool CheckpointSave::is_remote() const {
  return is_s3_path(target_.folder);
}

/// Ignores errors: the next save removes the files that remain.
void CheckpointSave::TempDirGuard::remove() {
  std::error_code ignored;
  if (!path.empty()) fs::remove_all(path, ignored);
  path.clear();
}

void CheckpointSave::verify_lock_held() const {
  if (target_.lock) target_.lock->check_held();
}

bool CheckpointSave::is_leader() const {
  return world_.rank() == 0 || target_.coverage == Coverage::Part;
}

Path CheckpointSave::path() const {
  return target_.folder / checkpoint_name(state_.iteration);
}

void CheckpointSave::make_directory() {
  verify_lock_held();
  if (is_remote()) {
    remove_stale_entries(target_.folder, log_);
    save_id_ = random_id();
    return;
  }
  mcpp::create_directories(target_.folder);
  remove_stale_entries(target_.folder, log_);
  staging_ = str(path().string(), kTempInfix, process_tag());
  mcpp::create_directories(staging_);
  temp_dir_guard_.path = staging_;
}

/// Creates the folder in which this rank writes its file before it uploads it.
void CheckpointSave::make_local_directory() {
  const Path folder = run_folder(target_.folder) / str("staging-", world_.rank());
  mcpp::create_directories(folder);
  remove_stale_entries(folder, log_);
  staging_ = folder / str(path().filename().string(), kTempInfix, process_tag());
  mcpp::create_directories(staging_);
  temp_dir_guard_.path = staging_;
}

template <class F>
void CheckpointSave::keep_error(F&& f) noexcept {
  try {
    f();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void CheckpointSave::throw_error() const {
  if (error_) std::rethrow_exception(error_);
}

void CheckpointSave::write(ShardSource& source, const std::function<void()>& prepare) noexcept {
  keep_error([&] {
    const Path file = staging_ / shard_file_name(world_.rank(), world_.size(), save_id_);
    reach(SavePoint::BeforeFiles, target_.observer);
    if (prepare) prepare();
    const Manifest part = write_shard_file(file, source, files_);
    if (is_remote() && !part.files.empty()) upload(file);
    part_ = to_json(part);
    reach(SavePoint::AfterFiles, target_.observer);
  });
}

/// Uploads the file of this rank. It is not visible until the manifest lists it.
void CheckpointSave::upload(const Path& file) {
  upload_file(file, path() / file.filename());
  std::filesystem::remove(file);
}

void CheckpointSave::gather() {
  run_on_all_ranks(world_, [&] { throw_error(); });
  if (target_.coverage == Coverage::Part)
    parts_ = {part_};
  else
    parts_ = gather_strings(part_, world_);
}

void CheckpointSave::commit() noexcept {
  if (!is_leader()) return;
  keep_error([&] {
    publish(merge());
    reach(SavePoint::BeforePrune, target_.observer);
    temp_dir_guard_.remove();
    prune(target_.folder, target_.retention, log_);
  });
}

Path CheckpointSave::finish() {
  run_on_all_ranks(world_, [&] { throw_error(); });
  return path();
}

Path CheckpointSave::gather_and_finish() {
  gather();
  commit();
  return finish();
}

/// Merges the manifests of all ranks into one.
Manifest CheckpointSave::merge() const {
  Manifest manifest{
      .saved_at = utc_text(std::chrono::system_clock::now(), kIsoTime), .coverage = target_.coverage, .state = state_};
  std::map<std::string, TensorEntry> tensors;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    merge_part(parse_manifest(parts_[rank], str("the part of rank ", rank)), rank, manifest, tensors);
  }
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  return manifest;
}

void CheckpointSave::publish(const Manifest& manifest) {
  validate(manifest, "the checkpoint to save");
  reach(SavePoint::BeforeManifest, target_.observer);
  if (is_remote()) return publish_objects(manifest);
  write_manifest(staging_, manifest);
  fsync_path(staging_);
  reach(SavePoint::BeforeRename, target_.observer);
  verify_lock_held();
  begin_publication(path(), staging_);
  publish_directory();
  fsync_path(target_.folder);
  reach(SavePoint::BeforeLatest, target_.observer);
  verify_lock_held();
  end_publication(path());
}

/// Uploads the manifest, which makes the checkpoint visible. It replaces a checkpoint of the same iteration, whose
/// objects are then removed.
void CheckpointSave::publish_objects(const Manifest& manifest) {
  write_manifest(staging_, manifest);  // begin_publication() records its checksum
  reach(SavePoint::BeforeRename, target_.observer);
  verify_lock_held();
  begin_publication(path(), staging_);
  write_manifest(path(), manifest);
  reach(SavePoint::BeforeLatest, target_.observer);
  verify_lock_held();
  end_publication(path());
  remove_unlisted_objects(path(), manifest, log_);
}

/// Renames the staging directory to the checkpoint's name. An existing checkpoint takes its name and is removed later.
void CheckpointSave::publish_directory() {
  std::error_code error;
  const bool is_replacement = fs::exists(path(), error);
  temp_dir_guard_.path = is_replacement ? staging_ : Path();
  int has_failed = files_.rename(staging_, path(), is_replacement ? RENAME_EXCHANGE : 0);
  if (has_failed && is_replacement && (errno == EINVAL || errno == ENOSYS)) has_failed = rename_without_exchange();
  const int reason = errno;
  if (has_failed) temp_dir_guard_.path = staging_;
  if (has_failed) remove_stale_publication(target_.folder);
  MCPP_CHECK_ERROR(has_failed ? reason : 0, "cannot rename ", staging_.string(), " to ", path().string());
}

/// Implements the replacement on file systems that cannot exchange two names: moves the older checkpoint aside first.
/// If the process dies before the new one has the name, remove_stale_entries() restores it.
int CheckpointSave::rename_without_exchange() {
  const Path moved_aside = staging_.string() + std::string(kReplacedSuffix);
  if (const int has_failed = files_.rename(path(), moved_aside, 0)) return has_failed;
  temp_dir_guard_.path = moved_aside;
  const int has_failed = files_.rename(staging_, path(), 0), reason = errno;
  if (has_failed) files_.rename(moved_aside, path(), 0);
  errno = reason;
  return has_failed;
}

Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention, const FileSystem& files) {
  CheckpointSave save({.folder = folder, .retention = retention}, state, world, log, files);
  save.write(source);
  return save.gather_and_finish();
}

namespace {

double bytes_of(const ShardSpec& shard) {
  return static_cast<double>(shard.numel() * size_of(shard.dtype));
}

double bytes_of(std::span<const ShardSpec> shards) {
  double sum = 0;
  for (const ShardSpec& shard : shards) sum += bytes_of(shard);
  return sum;
}

}  // namespace

ProgressShardSource::ProgressShardSource(ShardSource& source, StoredRef<Log> log, std::string what)
    : source_(source), progress_(log, std::move(what), {.total = bytes_of(source.shards())}) {}

Tensor ProgressShardSource::data(std::size_t index) {
  progress_.update(done_);
  done_ += bytes_of(shards()[index]);
  return source_.data(index);
}

}  // namespace mcpp
