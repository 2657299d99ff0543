#include "megatron_cpp/resume/part_recovery.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/machine.h"
#include "base/strings.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/retention.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/part_transfer.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Copy of a rank's part: its own part, or a replica.
struct PartCopy {
  int finder;  ///< rank that found it on its node
  bool is_replica;
};

/// Copies of the parts of one save, by the rank whose state they hold.
using Copies = std::map<int, std::vector<PartCopy>>;

/// Iteration and id of a save.
struct SaveKey {
  i64 iteration;
  std::string id;
  auto operator<=>(const SaveKey&) const = default;
};

/// Folder of the parts or copies of one rank.
struct PartFolder {
  Path path;
  int rank, ranks;
  bool is_replica;
};

/// Returns the folders of parts and copies in the folder of a node, sorted by name.
std::vector<PartFolder> list_part_folders(const Path& folder) {
  std::vector<PartFolder> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    PartFolder found{.path = entry.path(), .rank = 0, .ranks = 0, .is_replica = name.starts_with("replica_")};
    const char* format = found.is_replica ? "replica_%d-of-%d" : "rank_%d-of-%d";
    if (std::sscanf(name.c_str(), format, &found.rank, &found.ranks) != 2) continue;
    if (name == part_folder_name(found.rank, found.ranks, found.is_replica)) folders.push_back(std::move(found));
  }
  std::ranges::sort(folders, {}, &PartFolder::path);
  return folders;
}

/// Returns the id of the save of a part; "" if the part belongs to a different run or its manifest is damaged, which
/// logs a warning.
std::string save_id_of(const Path& part, const std::string& run_id, const Log& log) {
  try {
    const std::map<std::string, std::string> extra = read_manifest(part).state.extra;
    const auto run = extra.find(kRunIdName), save = extra.find(kSaveIdName);
    return run != extra.end() && run->second == run_id && save != extra.end() ? save->second : "";
  } catch (const Error& error) {
    log.warn_from_any_rank(str("a part of a local checkpoint is damaged and not used: ", error.what()));
    return "";
  }
}

/// Lists the parts of this run in the part folders of the node, which its ranks divide among themselves. Returns a line
/// "<iteration> <rank> <1 if it is a replica> <save id>" for each part.
std::string list_copies(const LocalStore& store, const Communicator& world, const Log& log) {
  const auto me = static_cast<std::size_t>(world.rank());
  std::size_t index = 0, count = 0;
  for (std::size_t rank = 0; rank < store.nodes.size(); ++rank) {
    if (store.nodes[rank] != store.nodes[me]) continue;
    if (rank == me) index = count;
    ++count;
  }
  std::string lines;
  const std::vector<PartFolder> folders = list_part_folders(store.folder);
  for (std::size_t i = index; i < folders.size(); i += count) {
    const PartFolder& folder = folders[i];
    if (folder.ranks != world.size() || folder.rank >= world.size()) continue;
    for (const Path& part : checkpoints_in(folder.path)) {
      const std::string id = save_id_of(part, store.run_id, log);
      if (id.empty()) continue;
      lines +=
          str(*iteration_of(part.filename().string()), " ", folder.rank, " ", folder.is_replica ? 1 : 0, " ", id, "\n");
    }
  }
  return lines;
}

/// Gathers the lists of list_copies(). Returns the copies of all saves, newest first. Collective.
std::map<SaveKey, Copies, std::greater<>> gather_copies(const LocalStore& store, Communicator& world, const Log& log) {
  std::map<SaveKey, Copies, std::greater<>> saves;
  const std::vector<std::string> lists = run_on_all_ranks(world, [&] { return list_copies(store, world, log); });
  for (std::size_t finder = 0; finder < lists.size(); ++finder) {
    for (const std::string& line : split(lists[finder], '\n')) {
      const std::vector<std::string> words = split(line, ' ');
      if (words.size() != 4) continue;
      saves[{std::stoll(words[0]), words[3]}][std::stoi(words[1])].push_back(
          {.finder = static_cast<int>(finder), .is_replica = words[2] == "1"});
    }
  }
  return saves;
}

/// Returns the temporary directory in which this process writes a part before it is visible.
Path temporary_directory(const Path& part) {
  return part.string() + std::string(kTempInfix) + process_tag();
}

/// Copies the directory `source` to `part`. Throws BadInput if that fails, for example because the disk is full.
void copy_part(const Path& source, const Path& part) {
  const Path directory = temporary_directory(part);
  mcpp::create_directories(part.parent_path());
  std::error_code error;
  fs::remove_all(directory, error);
  fs::copy(source, directory, fs::copy_options::recursive, error);
  check_input(!error, "cannot copy ", source.string(), " to ", directory.string(), ": ", error.message());
  publish_part(directory, part);
}

std::string checkpoint_text(i64 iteration) {
  return str("the local checkpoint of iteration ", iteration);
}

/// Restoration of one save. The state is identical on all ranks.
class SaveRestoration {
 public:
  SaveRestoration(const LocalStore& store, i64 iteration, Copies copies, Communicator& world, const Log& log)
      : store_(store), iteration_(iteration), copies_(std::move(copies)), world_(world), log_(log) {
    for (int rank = 0; rank < world.size(); ++rank) {
      std::ranges::stable_sort(copies_[rank], {}, [&](const PartCopy& copy) {
        return std::pair(!is_on_node_of(copy, rank), copy.is_replica);
      });
    }
    next_.resize(store.nodes.size());
    is_available_.resize(store.nodes.size());
  }

  /// Returns true if the part of every rank is available on its node. Collective.
  bool run() {
    while (true) {
      if (const int lost = find_lost(); lost >= 0) {
        log_.warn(str(checkpoint_text(iteration_), " is not used: rank ", lost, " has no intact copy left"));
        return false;
      }
      if (std::ranges::all_of(is_available_, std::identity())) break;
      try_next_copies();
    }
    if (!restored_.empty())
      log_.info(str(checkpoint_text(iteration_), ": restored from copies: the parts of ranks ", join(restored_, ", ")));
    return true;
  }

 private:
  bool is_on_node_of(const PartCopy& copy, int rank) const {
    return store_.nodes[static_cast<std::size_t>(copy.finder)] == store_.nodes[static_cast<std::size_t>(rank)];
  }
  /// Returns the copy that is tried next for a rank.
  const PartCopy& candidate(int rank) const { return copies_.at(rank)[next_[static_cast<std::size_t>(rank)]]; }
  /// Returns true if the part of a rank is not available on its node yet.
  bool needs_part(int rank) const { return !is_available_[static_cast<std::size_t>(rank)]; }
  /// Returns the first rank without another copy to try, or -1.
  int find_lost() const {
    for (int rank = 0; rank < world_.size(); ++rank)
      if (needs_part(rank) && next_[static_cast<std::size_t>(rank)] >= copies_.at(rank).size()) return rank;
    return -1;
  }
  Path path_of(int rank, bool is_replica) const {
    return store_.folder / part_folder_name(rank, world_.size(), is_replica) / checkpoint_name(iteration_);
  }
  std::string describe(const PartCopy& copy) const {
    const int node = store_.nodes[static_cast<std::size_t>(copy.finder)];
    return str(copy.is_replica ? "the copy" : "the part", " on the node of rank ", node);
  }

  /// Tries the next copy of every rank that needs one.
  void try_next_copies();
  /// Receives this rank's part from another node while sending those that other ranks receive from this rank. Returns
  /// the received part, not verified yet, or null.
  std::unique_ptr<PartReceive> exchange();
  /// Makes this rank's part available from the candidate: from `received`, or null for one on its node. Returns the
  /// problems of the candidate, or "".
  std::string restore_own_part(PartReceive* received) const;

  const LocalStore& store_;
  const i64 iteration_;
  Copies copies_;
  Communicator& world_;
  const Log& log_;
  std::vector<std::size_t> next_;   // by rank: index of the copy to try
  std::vector<bool> is_available_;  // by rank
  std::vector<std::string> restored_;
};

std::unique_ptr<PartReceive> SaveRestoration::exchange() {
  const int me = world_.rank();
  std::vector<std::unique_ptr<PartSend>> sends;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (!needs_part(rank) || is_on_node_of(candidate(rank), rank) || candidate(rank).finder != me) continue;
    const Path part = path_of(rank, candidate(rank).is_replica);
    const auto files = std::make_shared<PartFiles>(part);
    sends.push_back(std::make_unique<PartSend>(files, world_, rank));
    files->read(part);  // the receiver verifies it
  }
  std::unique_ptr<PartReceive> receive;
  if (needs_part(me) && !is_on_node_of(candidate(me), me)) {
    const Path directory = temporary_directory(path_of(me, /*is_replica=*/false));
    receive = std::make_unique<PartReceive>(directory, world_, candidate(me).finder);
  }
  run_on_all_ranks(world_, [&] {
    if (receive) receive->reserve();
  });
  if (receive) receive->start();
  for (const auto& send : sends) send->start();
  if (receive) receive->wait();
  for (const auto& send : sends) send->wait();
  return receive;
}

std::string SaveRestoration::restore_own_part(PartReceive* received) const {
  const int me = world_.rank();
  if (!needs_part(me)) return "";
  const Path part = path_of(me, /*is_replica=*/false);
  if (received) {
    std::string problem = received->write_and_verify();
    if (problem.empty()) received->publish(part);
    return problem;
  }
  const bool is_replica = candidate(me).is_replica;
  const Path source = path_of(me, is_replica);
  const std::string problem = join(find_problems(source), "\n");
  if (problem.empty() && is_replica) copy_part(source, part);
  return problem;
}

void SaveRestoration::try_next_copies() {
  const std::unique_ptr<PartReceive> received = exchange();
  const std::vector<std::string> problems = run_on_all_ranks(world_, [&] { return restore_own_part(received.get()); });
  for (int rank = 0; rank < world_.size(); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (!needs_part(rank)) continue;
    const PartCopy& copy = candidate(rank);
    if (problems[index].empty()) {
      is_available_[index] = true;
      if (copy.is_replica || !is_on_node_of(copy, rank)) restored_.push_back(std::to_string(rank));
      continue;
    }
    log_.warn(str(checkpoint_text(iteration_), ": ", describe(copy), " of the state of rank ", rank, " is damaged:\n",
                  problems[index]));
    ++next_[index];
  }
}

/// Returns the ranks without any part or copy as text like "1, 5"; "" if there are none.
std::string missing_ranks(const Copies& copies, int ranks) {
  std::vector<std::string> missing;
  for (int rank = 0; rank < ranks; ++rank)
    if (!copies.contains(rank)) missing.push_back(std::to_string(rank));
  return join(missing, ", ");
}

}  // namespace

bool restore_parts(const LocalStore& store, i64 newer_than, Communicator& world, const Log& log) {
  for (auto& [save, copies] : gather_copies(store, world, log)) {
    if (save.iteration <= newer_than) break;
    if (const std::string missing = missing_ranks(copies, world.size()); !missing.empty()) {
      log.info(str(checkpoint_text(save.iteration), " is not complete: no copy of the state of ranks ", missing));
      continue;
    }
    if (SaveRestoration(store, save.iteration, copies, world, log).run()) return true;
  }
  return false;
}

void remove_unused_parts(const LocalStore& store, const std::vector<std::string>& kept, const Log& log) {
  for (const PartFolder& folder : list_part_folders(store.folder)) {
    if (std::ranges::count(kept, folder.path.filename().string()) > 0) continue;
    bool has_own = false, has_other = false;
    std::error_code error;
    for (const Path& part : checkpoints_in(folder.path)) {
      const bool is_of_run = extra_value(part, kRunIdName) == store.run_id;
      (is_of_run ? has_own : has_other) = true;
      if (is_of_run) fs::remove_all(part, error);
      if (error) log.warn_from_any_rank(str("cannot remove ", part.string(), ": ", error.message()));
    }
    if (has_own && !has_other) fs::remove_all(folder.path, error);  // what is left are the lock and `latest`
  }
}

}  // namespace mcpp
