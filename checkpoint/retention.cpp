#include "checkpoint/retention.h"

#include <algorithm>

#include "base/strings.h"
#include "checkpoint/folder.h"
#include "checkpoint/process.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Removes a checkpoint so that, killed on the way, it leaves a temporary directory rather than a broken checkpoint.
void remove_checkpoint(const Path& directory, const Log& log) {
  std::error_code error;
  const Path doomed = directory.string() + std::string(kTemporary) + process_tag();
  fs::rename(directory, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  if (error) log.warn(str("cannot remove the old checkpoint ", directory.string(), ": ", error.message()));
}

}  // namespace

std::vector<Path> outdated(const Path& folder, const Retention& retention) {
  const std::optional<Path> latest = latest_in(folder);
  if (retention.keep_last == 0 || !latest) return {};
  std::vector<Path> all = checkpoints_in(folder);
  all.resize(all.size() - std::min(all.size(), static_cast<std::size_t>(retention.keep_last)));
  std::erase_if(all, [&](const Path& directory) {
    const i64 interval = retention.save_retain_interval;
    const bool retained = interval > 0 && *iteration_of(directory.filename().string()) % interval == 0;
    return retained || directory == *latest;
  });
  return all;
}

void prune(const Path& folder, const Retention& retention, const Log& log) {
  for (const Path& directory : outdated(folder, retention)) remove_checkpoint(directory, log);
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
