#include "checkpoint/save/writer.h"

#include <stdio.h>

#include <array>
#include <ctime>
#include <map>

#include "base/machine.h"
#include "base/system_error.h"
#include "checkpoint/folder/exchange.h"
#include "checkpoint/folder/folder.h"
#include "checkpoint/save/shard_file.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string shard_file_name(int rank, int size) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "shard_%05d-of-%05d.h5", rank, size);
  return text.data();
}

/// Adds the tensors of one rank's file to those of the others.
void add_part(Manifest part, std::size_t rank, Manifest& whole, std::map<std::string, TensorEntry>& tensors) {
  for (TensorEntry& tensor : part.tensors) {
    TensorEntry& merged =
        tensors.try_emplace(tensor.name, TensorEntry{tensor.name, tensor.dtype, tensor.global, {}}).first->second;
    check_input(merged.dtype == tensor.dtype && merged.global == tensor.global, "rank ", rank, " holds ", tensor.name,
                " as ", name_of(tensor.dtype), " ", tensor.global, ", another rank as ", name_of(merged.dtype), " ",
                merged.global);
    for (ShardEntry& shard : tensor.shards) {
      shard.file = static_cast<i64>(whole.files.size());
      merged.shards.push_back(std::move(shard));
    }
  }
  whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
}

}  // namespace

CheckpointSave::CheckpointSave(SaveTarget target, RunState state, Communicator& world, KeptRef<Log> log,
                               KeptRef<FileSystem> files)
    : target_(std::move(target)), state_(std::move(state)), world_(world), log_(log), files_(files) {
  const std::vector<std::string> made = run_together(world_, [&] {
    if (is_leader()) make_directory();
    return staging_.string();
  });
  if (!is_leader()) staging_ = made[0];
}

/// What cannot be removed now, the next save removes.
void CheckpointSave::Doomed::remove() {
  std::error_code ignored;
  if (!path.empty()) fs::remove_all(path, ignored);
  path.clear();
}

void CheckpointSave::check_still_ours() const {
  if (target_.lock) target_.lock->check_held();
}

bool CheckpointSave::is_leader() const {
  return world_.rank() == 0 || target_.coverage == Coverage::Part;
}

Path CheckpointSave::path() const {
  return target_.folder / checkpoint_name(state_.iteration);
}

void CheckpointSave::make_directory() {
  check_still_ours();
  mcpp::create_directories(target_.folder);
  remove_stale(target_.folder, log_);
  staging_ = str(path().string(), kTemporary, process_tag());
  mcpp::create_directories(staging_);
  doomed_.path = staging_;
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
    const Path file = staging_ / shard_file_name(world_.rank(), world_.size());
    reach(SavePoint::BeforeFiles, target_.observer);
    if (prepare) prepare();
    part_ = to_json(write_shard_file(file, source, files_));
    reach(SavePoint::AfterFiles, target_.observer);
  });
}

void CheckpointSave::gather() {
  parts_ = run_together(world_, [&] {
    throw_error();
    return target_.coverage == Coverage::Whole ? part_ : std::string();
  });
  if (target_.coverage == Coverage::Part) parts_ = {part_};
}

void CheckpointSave::commit() noexcept {
  if (!is_leader()) return;
  keep_error([&] {
    publish(merge());
    reach(SavePoint::BeforePrune, target_.observer);
    doomed_.remove();
    prune(target_.folder, target_.retention, log_);
  });
}

Path CheckpointSave::finish() {
  run_together(world_, [&] {
    throw_error();
    return std::string();
  });
  return path();
}

Path CheckpointSave::gather_and_finish() {
  gather();
  commit();
  return finish();
}

/// One manifest of the ranks' parts.
Manifest CheckpointSave::merge() const {
  Manifest whole{.saved_at = utc_now(), .coverage = target_.coverage, .state = state_};
  std::map<std::string, TensorEntry> tensors;
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    add_part(parse_manifest(parts_[rank], str("the part of rank ", rank)), rank, whole, tensors);
  }
  for (auto& [name, tensor] : tensors) whole.tensors.push_back(std::move(tensor));
  return whole;
}

void CheckpointSave::publish(const Manifest& manifest) {
  validate(manifest, "the checkpoint to save");
  reach(SavePoint::BeforeManifest, target_.observer);
  write_manifest(staging_, manifest);
  fsync_path(staging_);
  reach(SavePoint::BeforeRename, target_.observer);
  check_still_ours();
  begin_publication(path(), staging_);
  become_checkpoint();
  fsync_path(target_.folder);
  reach(SavePoint::BeforeLatest, target_.observer);
  check_still_ours();
  end_publication(path());
}

/// An older checkpoint of the same name takes the temporary directory's place, and is then to be removed.
void CheckpointSave::become_checkpoint() {
  std::error_code error;
  const bool replaces = fs::exists(path(), error);
  doomed_.path = replaces ? staging_ : Path();
  int failed = files_.rename(staging_, path(), replaces ? RENAME_EXCHANGE : 0);
  if (failed && replaces && (errno == EINVAL || errno == ENOSYS)) failed = rename_in_two_steps();
  const int reason = errno;
  if (failed) doomed_.path = staging_;
  if (failed) remove_stale_publication(target_.folder);
  MCPP_CHECK_ERROR(failed ? reason : 0, "cannot rename ", staging_.string(), " to ", path().string());
}

/// Where a file system cannot exchange two names, the older checkpoint goes aside first. When this process dies before
/// the new one has the name, remove_stale() gives it back.
int CheckpointSave::rename_in_two_steps() {
  const Path aside = staging_.string() + std::string(kAside);
  if (const int failed = files_.rename(path(), aside, 0)) return failed;
  doomed_.path = aside;
  const int failed = files_.rename(staging_, path(), 0), reason = errno;
  if (failed) files_.rename(aside, path(), 0);
  errno = reason;
  return failed;
}

Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention, const FileSystem& files) {
  CheckpointSave save({.folder = folder, .retention = retention}, state, world, log, files);
  save.write(source);
  return save.gather_and_finish();
}

Path save_checkpoint(const Path& folder, const RunState& state, std::span<const NamedShard> shards, Communicator& world,
                     const Log& log, const Retention& retention, const FileSystem& files) {
  ShardList source(shards);
  return save_checkpoint(folder, state, source, world, log, retention, files);
}

}  // namespace mcpp
