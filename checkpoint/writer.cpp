#include "checkpoint/writer.h"

#include <stdio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <map>

#include "checkpoint/exchange.h"
#include "checkpoint/folder.h"
#include "checkpoint/process.h"
#include "checkpoint/shard_file.h"

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

CheckpointSave::CheckpointSave(SaveTarget target, RunState state, Communicator& world, const Log& log,
                               const FileSystem& files)
    : target_(std::move(target)), state_(std::move(state)), world_(world), log_(log), files_(files) {
  const std::vector<std::string> made = run_together(world_, [&] {
    if (is_leader()) make_directory();
    return staging_.string();
  });
  if (!is_leader()) staging_ = made[0];
}

CheckpointSave::~CheckpointSave() {
  std::error_code ignored;
  if (owns_staging_) fs::remove_all(staging_, ignored);
}

bool CheckpointSave::is_leader() const {
  return world_.rank() == 0 || target_.coverage == Coverage::Part;
}

Path CheckpointSave::path() const {
  return target_.folder / checkpoint_name(state_.iteration);
}

void CheckpointSave::make_directory() {
  mcpp::create_directories(target_.folder);
  remove_stale(target_.folder, log_);
  staging_ = str(path().string(), kTemporary, process_tag());
  mcpp::create_directories(staging_);
  owns_staging_ = true;
}

void CheckpointSave::write(ShardSource& source) noexcept {
  try {
    const Path file = staging_ / shard_file_name(world_.rank(), world_.size());
    reach(SavePoint::BeforeFiles, target_.observer);
    part_ = to_json(write_shard_file(file, source, files_));
    reach(SavePoint::AfterFiles, target_.observer);
  } catch (...) {
    error_ = std::current_exception();
  }
}

Path CheckpointSave::finish() {
  const std::vector<std::string> parts = run_together(world_, [&] {
    if (error_) std::rethrow_exception(error_);
    return target_.coverage == Coverage::Whole ? part_ : std::string();
  });
  run_together(world_, [&] {
    if (is_leader()) commit(merge(target_.coverage == Coverage::Whole ? parts : std::vector{part_}));
    return std::string();
  });
  if (is_leader()) reach(SavePoint::BeforePrune, target_.observer);
  if (is_leader()) prune(target_.folder, target_.retention, log_);
  return path();
}

/// One manifest of the ranks' parts.
Manifest CheckpointSave::merge(std::span<const std::string> parts) const {
  Manifest whole{.saved_at = utc_now(), .coverage = target_.coverage, .state = state_};
  std::map<std::string, TensorEntry> tensors;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    add_part(parse_manifest(parts[rank], str("the part of rank ", rank)), rank, whole, tensors);
  }
  for (auto& [name, tensor] : tensors) whole.tensors.push_back(std::move(tensor));
  return whole;
}

void CheckpointSave::commit(const Manifest& manifest) {
  validate(manifest, "the checkpoint to save");
  reach(SavePoint::BeforeManifest, target_.observer);
  write_manifest(staging_, manifest);
  fsync_path(staging_);
  reach(SavePoint::BeforeRename, target_.observer);
  become_checkpoint();
  fsync_path(target_.folder);
  reach(SavePoint::BeforeLatest, target_.observer);
  write_file_atomic(target_.folder / kLatestName, path().filename().string() + "\n");
}

/// An older checkpoint of the same name takes the temporary directory's place and goes with it.
void CheckpointSave::become_checkpoint() {
  std::error_code error;
  const bool replaces = fs::exists(path(), error);
  int failed = files_.rename(staging_, path(), replaces ? RENAME_EXCHANGE : 0);
  // Some file systems cannot exchange two names; then the old one goes first.
  if (failed && (errno == EINVAL || errno == ENOSYS)) {
    const Path old = staging_.string() + "-old";
    if (replaces) fs::rename(path(), old, error);
    failed = files_.rename(staging_, path(), 0);
    const int reason = errno;
    if (replaces && failed) fs::rename(old, path(), error);
    if (replaces && !failed) fs::remove_all(old, error);
    errno = reason;
  }
  check_input(!failed, "cannot rename ", staging_.string(), " to ", path().string(), ": ", std::strerror(errno));
  owns_staging_ = replaces;  // the older one, to remove
}

Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention, const FileSystem& files) {
  CheckpointSave save({.folder = folder, .retention = retention}, state, world, log, files);
  save.write(source);
  return save.finish();
}

Path save_checkpoint(const Path& folder, const RunState& state, std::span<const NamedShard> shards, Communicator& world,
                     const Log& log, const Retention& retention, const FileSystem& files) {
  ShardList source(shards);
  return save_checkpoint(folder, state, source, world, log, retention, files);
}

}  // namespace mcpp
