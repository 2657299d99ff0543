#include "checkpoint/writer.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
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
constexpr std::string_view kTemporary = ".tmp-";

/// The directory a checkpoint grows in; removed when it does not become one.
class Staging {
 public:
  explicit Staging(Path path) : path_(std::move(path)) {}
  ~Staging() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  const Path& path() const { return path_; }

  /// Makes it appear as `target`. An older checkpoint of that name takes its place here and goes with it.
  void become(const Path& target) {
    std::error_code error;
    const bool replaces = fs::exists(target, error);
    int failed = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), replaces ? RENAME_EXCHANGE : 0);
    // Some file systems cannot exchange two names; then the old one goes first.
    if (failed && (errno == EINVAL || errno == ENOSYS)) {
      if (replaces) fs::rename(target, path_.string() + "-old", error);
      failed = ::rename(path_.c_str(), target.c_str());
      if (!failed) fs::remove_all(path_.string() + "-old", error);
    }
    check_input(!failed, "cannot rename ", path_.string(), " to ", target.string(), ": ", std::strerror(errno));
    if (!replaces) path_.clear();
  }

 private:
  Path path_;
};

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

Path begin(const Path& folder, const RunState& state, const Log& log) {
  mcpp::create_directories(folder);
  remove_stale(folder, log);
  const Path staging = folder / str(checkpoint_name(state.iteration), kTemporary, process_tag());
  mcpp::create_directories(staging);
  return staging;
}

/// One manifest of the ranks' parts.
Manifest merge(std::span<const std::string> parts, const RunState& state) {
  Manifest whole{.saved_at = utc_now(), .state = state};
  std::map<std::string, TensorEntry> tensors;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    Manifest part = parse_manifest(parts[rank], str("the part of rank ", rank));
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
  for (auto& [name, tensor] : tensors) whole.tensors.push_back(std::move(tensor));
  return whole;
}

void commit(Staging& staging, const Path& target, const Manifest& manifest, const SaveObserver& observer) {
  validate(manifest, "the checkpoint to save");
  reach(SavePoint::BeforeManifest, observer);
  write_manifest(staging.path(), manifest);
  fsync_path(staging.path());
  reach(SavePoint::BeforeRename, observer);
  staging.become(target);
  const Path folder = target.parent_path();
  fsync_path(folder);
  reach(SavePoint::BeforeLatest, observer);
  write_file_atomic(folder / kLatestName, target.filename().string() + "\n");
}

/// Removes a checkpoint so that, killed on the way, it leaves a temporary directory rather than a broken checkpoint.
void remove_checkpoint(const Path& directory, const Log& log) {
  std::error_code error;
  const Path doomed = directory.string() + std::string(kTemporary) + process_tag();
  fs::rename(directory, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  if (error) log.warn(str("cannot remove the old checkpoint ", directory.string(), ": ", error.message()));
}

}  // namespace

Path save_checkpoint(const Path& folder, const RunState& state, ShardSource& source, Communicator& world,
                     const Log& log, const Retention& retention, const SaveObserver& observer) {
  const bool first = world.rank() == 0;
  const Path staging_path =
      run_together(world, [&] { return first ? begin(folder, state, log).string() : std::string(); })[0];
  Staging staging(first ? staging_path : Path());

  const std::vector<std::string> parts = run_together(world, [&] {
    const Path file = staging_path / shard_file_name(world.rank(), world.size());
    reach(SavePoint::BeforeFiles, observer);
    const Manifest part = write_shard_file(file, source);
    reach(SavePoint::AfterFiles, observer);
    return to_json(part);
  });

  const Path target = folder / checkpoint_name(state.iteration);
  run_together(world, [&] {
    if (first) commit(staging, target, merge(parts, state), observer);
    return std::string();
  });
  if (first) reach(SavePoint::BeforePrune, observer);
  if (first) prune(folder, retention, log);
  return target;
}

Path save_checkpoint(const Path& folder, const RunState& state, std::span<const NamedShard> shards, Communicator& world,
                     const Log& log, const Retention& retention, const SaveObserver& observer) {
  ShardList source(shards);
  return save_checkpoint(folder, state, source, world, log, retention, observer);
}

void prune(const Path& folder, const Retention& retention, const Log& log) {
  const std::optional<Path> latest = latest_in(folder);
  if (retention.keep_last == 0 || !latest) return;
  std::vector<Path> all = checkpoints_in(folder);
  const auto newest = static_cast<std::size_t>(retention.keep_last);
  all.resize(all.size() - std::min(all.size(), newest));
  for (const Path& directory : all) {
    const i64 interval = retention.save_retain_interval;
    const bool retained = interval > 0 && *iteration_of(directory.filename().string()) % interval == 0;
    if (!retained && directory != *latest) remove_checkpoint(directory, log);
  }
}

void remove_stale(const Path& folder, const Log& log) {
  std::vector<Path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const std::size_t mark = name.find(kTemporary);
    const bool ours = name.starts_with("iter_") || name.starts_with(kLatestName);
    if (ours && mark != std::string::npos && is_stale_tag(name.substr(mark + kTemporary.size()))) {
      stale.push_back(entry.path());
    }
  }
  for (const Path& path : stale) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) log.warn(str("cannot remove ", path.string(), ", left by a process that ended: ", error.message()));
  }
}

}  // namespace mcpp
