#include "megatron_cpp/resume/local_checkpoint.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/machine.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/part_transfer.h"
#include "megatron_cpp/resume/replica_peers.h"
#include "megatron_cpp/resume/weight_source.h"
#include "megatron_cpp/step/training_shards.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSharedOrderName = "shared_order";

/// Returns the folder of a rank's node, which is simulated if checkpoint.local_ranks_per_node is set.
Path node_folder(const CheckpointConfig& config, int rank) {
  const i64 size = config.local_ranks_per_node;
  return size > 0 ? Path(config.local_save) / str("node_", rank / size) : Path(config.local_save);
}

/// Returns the identity of the run that saves in this folder, as stored in the file kRunIdName. It remains until the
/// folder is emptied.
std::string run_id(const Path& save) {
  const Path path = save / kRunIdName;
  if (!stored_file_exists(path)) {
    if (!is_s3_path(save)) mcpp::create_directories(save);
    write_stored_text(path, random_id());
  }
  return read_stored_text(path);
}

i64 iteration_of_part(const Path& part) {
  return *iteration_of(part.filename().string());
}

std::string name_for_messages(i64 iteration) {
  return str("the local checkpoint of iteration ", iteration);
}
std::string name_for_messages(const Path& part) {
  return name_for_messages(iteration_of_part(part));
}

/// Returns the names of the shared checkpoint to load and of newer checkpoints that a user rejected by setting `latest`
/// back. Empty if there are none, or if `latest` names no checkpoint: the next shared save repairs that.
std::vector<std::string> shared_order(const Path& save) {
  std::vector<std::string> names;
  try {
    for (const Path& path : checkpoints_in_order(save)) {
      if (names.empty() || iteration_of(path.filename().string()) > iteration_of(names.front()))
        names.push_back(path.filename().string());
    }
  } catch (const Error&) {
    names.clear();
  }
  return names;
}

/// Returns true if a user set the shared folder back to an older checkpoint after this part was saved: runs themselves
/// only make `latest` name newer ones. Removing checkpoints abandoned earlier changes nothing. Parts saved by versions
/// that did not record the order are accepted.
bool is_superseded(const CheckpointReader& part, const Path& save) {
  const std::vector<std::string> names = shared_order(save);
  if (names.empty() || part.state().iteration <= *iteration_of(names.front())) return false;
  const auto saved = part.state().extra.find(kSharedOrderName);
  if (saved == part.state().extra.end()) return false;
  const std::vector<std::string> former_order = split(saved->second, ' ');
  return former_order.front() != names.front() || std::ranges::any_of(names, [&](const std::string& name) {
           return std::ranges::count(former_order, name) == 0;
         });
}

/// Parses the list of a rank's entries in its folder of the local tier: by iteration, true if it may be a checkpoint,
/// false if it is a file.
std::map<i64, bool> parse_entries(const std::string& text) {
  std::map<i64, bool> list;
  for (const std::string& line : split(text, '\n')) {
    if (const auto iteration = iteration_of(line.substr(0, line.find(' '))))
      list[*iteration] = !line.ends_with(" file");
  }
  return list;
}
std::string list_entries(const Path& folder) {
  std::string list;
  for (const Path& directory : checkpoints_in(folder)) list += directory.filename().string() + " directory\n";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (iteration_of(name) && !entry.is_directory(error)) list += name + " file\n";
  }
  return list;
}

/// Returns the iterations of which every rank has an entry, newest first. Logs why other iterations are not used.
std::vector<i64> common_iterations(const Path& folder, Communicator& world, const Log& log) {
  std::vector<std::map<i64, bool>> lists;
  for (const std::string& text : run_on_all_ranks(world, [&] { return list_entries(folder); }))
    lists.push_back(parse_entries(text));
  std::set<i64> all;
  for (const auto& list : lists) {
    for (const auto& [iteration, is_directory] : list) all.insert(iteration);
  }
  std::vector<i64> common;
  for (auto iteration = all.rbegin(); iteration != all.rend(); ++iteration) {
    const auto incomplete = std::ranges::find_if(lists, [&](const auto& list) {
      const auto it = list.find(*iteration);
      return it == list.end() || !it->second;
    });
    if (incomplete == lists.end()) {
      common.push_back(*iteration);
      continue;
    }
    log.info(str(name_for_messages(*iteration), " is not used: rank ", incomplete - lists.begin(),
                 incomplete->contains(*iteration) ? " has a file of this name" : " has none"));
  }
  return common;
}

/// Logs parts on rank 0's node that were left by runs with a different number of ranks.
void log_other_world_sizes(const Path& local_save, const Path& folder, const Log& log) {
  std::error_code error;
  std::set<std::string> worlds;
  for (const auto& entry : fs::directory_iterator(local_save, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t suffix = name.find("-of-");
    if (name.starts_with("rank_") && suffix != std::string::npos &&
        !folder.filename().string().ends_with(name.substr(suffix)))
      worlds.insert(name.substr(suffix + 4));
  }
  for (const std::string& ranks : worlds)
    log.info(str(local_save.string(), ": the checkpoints of ", ranks,
                 " ranks are not used: local checkpoints require the same number of ranks"));
}

bool fits(const CheckpointReader& reader, const TrainingState& state) {
  std::vector<NamedShard> shards = shards_to_load(state);
  remove_unsaved_states(shards, reader);
  return std::ranges::all_of(specs_of(shards), [&](const ShardSpec& shard) { return reader.has_all_elements(shard); });
}

enum class PartStatus : u8 { Good, Foreign, Damaged };

/// Report of a rank about its part: its save, or why it cannot be used.
struct Report {
  PartStatus status;
  std::string text;

  std::string to_message() const { return str(static_cast<int>(status), " ", text); }
  static Report from(const std::string& message) {
    const std::size_t space = message.find(' ');
    return {static_cast<PartStatus>(std::stoi(message.substr(0, space))), message.substr(space + 1)};
  }
};

Report examine(const Path& directory, const std::string& run, const CheckpointConfig& config,
               const TrainingState& state) {
  if (const std::vector<std::string> problems = find_problems(directory, /*should_verify_checksums=*/false);
      !problems.empty())
    return {PartStatus::Damaged, join(problems, "\n")};
  const CheckpointReader reader(directory);
  const std::map<std::string, std::string>& extra = reader.state().extra;
  const auto id = extra.find(kRunIdName), save = extra.find(kSaveIdName);
  if (id == extra.end() || id->second != run || save == extra.end())
    return {PartStatus::Foreign, "from a different run"};
  if (!fits(reader, state)) return {PartStatus::Foreign, "from a different layout"};
  if (is_superseded(reader, config.save))
    return {PartStatus::Foreign, "newer than the checkpoint that latest was set to"};
  return {PartStatus::Good, save->second};
}

/// Returns the combined usability of the parts of all ranks. Logs why they are not usable.
LocalPartsStatus combine_reports(const std::vector<std::string>& messages, const Path& part, const Log& log) {
  const std::string what = name_for_messages(part);
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const auto [status, text] = Report::from(messages[rank]);
    if (status == PartStatus::Damaged) {
      log.warn(local_damage_warning(part, {static_cast<int>(rank), text}));
      return LocalPartsStatus::Damaged;
    }
    if (status == PartStatus::Foreign) {
      log.info(str(what, " is not used: its part on rank ", rank, " is ", text));
      return LocalPartsStatus::Foreign;
    }
  }
  const bool is_one_save =
      std::ranges::all_of(messages, [&](const std::string& message) { return message == messages[0]; });
  if (!is_one_save) log.info(str(what, " is not used: the ranks' parts belong to different saves"));
  return is_one_save ? LocalPartsStatus::Usable : LocalPartsStatus::Foreign;
}

}  // namespace

SaveTarget local_target(const CheckpointConfig& config, const Communicator& world) {
  return {
      .folder = node_folder(config, world.rank()) / part_folder_name(world.rank(), world.size(), /*is_replica=*/false),
      .retention = {.keep_latest_k = config.local_keep_latest_k, .owner_name = kRunIdName},
      .coverage = Coverage::Part};
}

void mark_local(RunState& run, const CheckpointConfig& config, Communicator& world) {
  run.extra[kRunIdName] = broadcast_from_rank0(world, [&] { return run_id(config.save); });
  run.extra[kSaveIdName] = broadcast_from_rank0(world, random_id);
  run.extra[kSharedOrderName] = broadcast_from_rank0(world, [&] { return join(shared_order(config.save), " "); });
}

LocalStore local_store(const CheckpointConfig& config, const Session& session) {
  Communicator& world = session.parallel.world;
  return {.folder = node_folder(config, world.rank()),
          .run_id = broadcast_from_rank0(world, [&] { return run_id(config.save); }),
          .nodes = nodes_of_ranks(config, session)};
}

void check_local_owner(const CheckpointConfig& config, const std::vector<Path>& folders, Communicator& world) {
  const std::string run = broadcast_from_rank0(world, [&] { return run_id(config.save); });
  const auto check = [&](const Path& part) {
    if (!find_problems(part, /*should_verify_checksums=*/false).empty()) return;  // reported when it would be used
    const std::map<std::string, std::string> extra = CheckpointReader(part).state().extra;
    const auto id = extra.find(kRunIdName);
    check_input(id == extra.end() || id->second == run, "checkpoint.local_save: ", part.string(),
                ": belongs to a different run than the checkpoints of checkpoint.save; set a different folder, or "
                "remove these checkpoints if no longer needed");
  };
  run_on_all_ranks(world, [&] {
    for (const Path& folder : folders) std::ranges::for_each(checkpoints_in(folder), check);
  });
}

void check_separate_folders(const CheckpointConfig& config, const LocalStore& store, Communicator& world) {
  if (config.local_ranks_per_node > 0) return;
  const auto me = static_cast<std::size_t>(world.rank());
  const bool is_first = store.nodes[me] == world.rank();
  const std::string prefix = "node-" + broadcast_from_rank0(world, random_id) + "-";
  const Path file = store.folder / str(prefix, world.rank());
  run_on_all_ranks(world, [&] {
    if (!is_first) return;
    mcpp::create_directories(store.folder);
    write_file_atomic(file, "");
  });
  std::string other;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(store.folder, error)) {
    const std::string name = entry.path().filename().string();
    if (is_first && name.starts_with("node-") && !name.starts_with(prefix)) fs::remove(entry.path(), error);  // stale
    if (is_first && name.starts_with(prefix) && name != file.filename()) other = name.substr(prefix.size());
  }
  world.barrier();
  if (is_first) fs::remove(file, error);
  run_on_all_ranks(world, [&] {
    check_input(
        other.empty(), "checkpoint.local_save: ", store.folder.string(), " is the same folder on the nodes of ranks ",
        world.rank(), " and ", other,
        "; checkpoint.local_replicas needs a folder on a disk or in the memory of each node, such as /dev/shm/run");
  });
}

std::vector<Path> local_parts(const CheckpointConfig& config, Communicator& world, const Log& log) {
  std::vector<Path> parts;
  if (config.local_save.empty()) return parts;
  const Path folder = local_target(config, world).folder;
  log_other_world_sizes(folder.parent_path(), folder, log);
  for (const i64 iteration : common_iterations(folder, world, log))
    parts.push_back(folder / checkpoint_name(iteration));
  return parts;
}

LocalPartsStatus inspect_local_parts(const Path& part, const CheckpointConfig& config, const TrainingState& state,
                                     Communicator& world, const Log& log) {
  const std::string run = broadcast_from_rank0(world, [&] { return run_id(config.save); });
  return combine_reports(run_on_all_ranks(world, [&] { return examine(part, run, config, state).to_message(); }), part,
                         log);
}

std::string local_damage_warning(const Path& part, const Damage& damage) {
  return str(name_for_messages(part), " is damaged on rank ", damage.rank, " and not used:\n", damage.text);
}

}  // namespace mcpp
