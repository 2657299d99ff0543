#include "checkpoint/directory/retention.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "base/machine.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "base/strings.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lineage.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Removes a checkpoint in an object store. The manifest is removed first, so that the checkpoint never seems complete
/// while objects are missing.
void remove_objects(const Path& directory, const Log& log) {
  try {
    remove_stored_file(directory / kManifestName);
    for (const Path& object : objects_in(directory)) remove_stored_file(object);
  } catch (const Error& error) {
    log.warn_from_any_rank(str("cannot remove ", directory.string(), ": ", error.what()));
  }
}

/// Removes the uploads of ended processes: old objects of checkpoints without a manifest. Newer ones may belong to a
/// save in progress of a process on another host, which the lock of this node does not exclude.
void remove_incomplete_uploads(const Path& folder, const Log& log) {
  constexpr i64 kMinAgeSeconds = 24 * 60 * 60;
  try {
    for (const std::string& name : object_folders(folder)) {
      if (!iteration_of(name) || stored_file_exists(folder / name / kManifestName)) continue;
      for (const Path& object : objects_in(folder / name, kMinAgeSeconds)) remove_stored_file(object);
    }
  } catch (const Error& error) {
    log.warn_from_any_rank(str("cannot look for interrupted uploads: ", error.what()));
  }
}

/// Removes a checkpoint. A process that is killed during the removal leaves a temporary directory, not a broken
/// checkpoint.
void remove_checkpoint(const Path& directory, const Log& log) {
  if (is_s3_path(directory)) return remove_objects(directory, log);
  std::error_code error;
  const Path temporary = directory.string() + std::string(kTempInfix) + process_tag();
  fs::rename(directory, temporary, error);
  if (!error) fs::remove_all(temporary, error);
  if (error)
    log.warn_from_any_rank(str("cannot remove the old checkpoint ", directory.string(), ": ", error.message()));
}

/// Entry that an ended process left behind.
struct Stale {
  Path path, checkpoint;  ///< `checkpoint`: the one that it was or would have become
  bool is_replaced;
};

std::optional<Stale> as_stale(const Path& path) {
  std::string name = path.filename().string();
  const bool is_own_entry = name.starts_with("iter_") || name.starts_with(kLatestName),
             is_replaced = name.ends_with(kReplacedSuffix);
  if (is_replaced) name.resize(name.size() - kReplacedSuffix.size());
  const std::size_t mark = name.find(kTempInfix);
  if (!is_own_entry || mark == std::string::npos || !is_stale_tag(name.substr(mark + kTempInfix.size())))
    return std::nullopt;
  return Stale{path, path.parent_path() / name.substr(0, mark), is_replaced};
}

std::vector<Stale> stale_entries(const Path& folder, const Log& log) {
  std::vector<Stale> entries;
  try {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (std::optional<Stale> stale = as_stale(entry.path())) entries.push_back(std::move(*stale));
    }
  } catch (const fs::filesystem_error& error) {
    log.warn_from_any_rank(str("cannot look for files that ended processes left: ", error.what()));
  }
  return entries;
}

/// Returns the iteration in the name of a checkpoint of checkpoints_in().
i64 iteration_in(const Path& directory) {
  return *iteration_of(directory.filename().string());
}

/// Erases the checkpoints that did not lead to `latest`. Those above it are newer, or abandoned.
void erase_other_branches(std::vector<Path>& all, const Path& latest) {
  const Lineage lineage = lineage_of(latest);
  const i64 iteration = iteration_in(latest);
  std::erase_if(all, [&](const Path& directory) {
    if (iteration_in(directory) > iteration) return true;
    // A run whose `latest` was never set back has one branch; its manifests need not be read.
    return !lineage.branches.empty() && !lineage_of(directory).precedes(iteration_in(directory), lineage, iteration);
  });
}

}  // namespace

std::string extra_value(const Path& directory, const std::string& name) {
  try {
    const RunState state = read_manifest(directory).state;
    const auto it = state.extra.find(name);
    return it == state.extra.end() ? std::string() : it->second;
  } catch (const Error&) {
    return {};
  }
}

bool is_interim_checkpoint(const Path& directory) {
  return !extra_value(directory, kInterimName).empty();
}

std::vector<Path> find_outdated(const Path& folder, const Retention& retention) {
  const std::optional<Path> latest = latest_in(folder);
  if (retention.keep_latest_k == 0 || !latest) return {};
  std::vector<Path> all = checkpoints_in(folder);
  if (std::ssize(all) <= retention.keep_latest_k) return {};  // all are kept, regardless of their manifests
  if (const std::string& name = retention.owner_name; !name.empty()) {
    const std::string owner = extra_value(*latest, name);
    std::erase_if(all, [&](const Path& directory) { return extra_value(directory, name) != owner; });
  }
  erase_other_branches(all, *latest);
  i64 kept = 0;
  const bool can_be_interim = retention.keeps_rollback_targets && std::ssize(all) > retention.keep_latest_k;
  const auto is_newest = [&](const Path& directory) {
    if (kept == retention.keep_latest_k || (can_be_interim && is_interim_checkpoint(directory))) return false;
    ++kept;
    return true;
  };
  std::set<Path> newest;
  std::copy_if(all.rbegin(), all.rend(), std::inserter(newest, newest.end()), is_newest);
  std::erase_if(all, [&](const Path& directory) {
    if (newest.contains(directory)) return true;
    const i64 interval = retention.save_retain_interval;
    const bool retained = interval > 0 && iteration_in(directory) % interval == 0;
    return retained || directory == *latest || directory == retention.in_use;
  });
  return all;
}

void prune(const Path& folder, const Retention& retention, const Log& log) {
  try {
    for (const Path& directory : find_outdated(folder, retention)) remove_checkpoint(directory, log);
  } catch (const std::exception& error) {
    log.warn_from_any_rank(str("cannot look for old checkpoints in ", folder.string(), ": ", error.what()));
  }
}

void remove_unlisted_objects(const Path& checkpoint, const Manifest& manifest, const Log& log) {
  std::set<std::string> listed{std::string(kManifestName), std::string(kManifestChecksumName)};
  for (const FileEntry& file : manifest.files) listed.insert(file.name);
  try {
    for (const Path& object : objects_in(checkpoint))
      if (!listed.contains(object.filename().string())) remove_stored_file(object);
  } catch (const Error& error) {
    log.warn_from_any_rank(str("cannot remove the objects of an earlier ", checkpoint.string(), ": ", error.what()));
  }
}

void remove_stale_entries(const Path& folder, const Log& log) {
  if (is_s3_path(folder)) {
    remove_incomplete_uploads(folder, log);
    return remove_stale_publication(folder);
  }
  for (const Stale& stale : stale_entries(folder, log)) {
    std::error_code error;
    if (stale.is_replaced && !fs::exists(stale.checkpoint, error)) {
      fs::rename(stale.path, stale.checkpoint, error);
    } else {
      fs::remove_all(stale.path, error);
    }
    if (error) {
      log.warn_from_any_rank(
          str("cannot remove ", stale.path.string(), ", left by a process that ended: ", error.message()));
    }
  }
  remove_stale_publication(folder);
}

}  // namespace mcpp
