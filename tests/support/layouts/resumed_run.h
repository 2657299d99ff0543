// Training runs that save and continue, and runs resumed from their saves.
#pragma once
#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/resume/part_recovery.h"
#include "megatron_cpp/resume/part_replication.h"
#include "megatron_cpp/resume/weight_source.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/layouts/layout_run.h"

namespace mcpp::test {

/// Trains two steps after the first two. Returns their losses and, if averaged weights are kept, the loss with these
/// weights on the samples of a later step.
inline Numbers continue_training(LayoutRank& self, const RunTask& task) {
  Numbers losses;
  for (i64 step = 2; step < 4; ++step) losses.push_back(self.step(step).loss);
  if (self.state().optimizer().has_ema()) {
    self.state().swap_ema();
    losses.push_back(self.evaluate(task, 4).loss);
    self.state().swap_ema();
  }
  return losses;
}

/// Trains two steps, saves, and continues for two more, whose losses it returns.
inline Numbers save_and_continue(const RunTask& task, const RunLayout& layout, const Path& folder,
                                 const RankDevicesFactory& make_devices = make_default_devices) {
  Numbers losses;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world, make_devices);
    for (i64 step = 0; step < 2; ++step) self.step(step);
    HostCopies source(shards_to_save(self.state()));
    save_checkpoint(folder, {.iteration = 2}, source, world, Log(rank));
    const Numbers rank_losses = continue_training(self, task);
    if (rank == 0) losses = rank_losses;
  });
  return losses;
}

/// Loads the checkpoint that was saved after two steps.
inline std::optional<Damage> load(LayoutRank& self, const Path& folder, Communicator& world) {
  std::vector<NamedShard> shards = shards_to_load(self.state());
  CheckpointReader reader(folder / checkpoint_name(2));
  std::vector<NamedShard> unsaved = extract_unsaved(shards, reader);
  const UnsavedStates started = remove_unsaved_states(shards, reader);
  std::optional<Damage> damage = reader.load(shards, {world});
  if (!damage) damage = load_redistributed_errors(unsaved, reader, {world});
  if (started.has_master) self.state().optimizer().copy_model_to_master();
  if (started.has_ema) self.state().optimizer().start_ema();
  self.state().publish_weights();
  self.state().optimizer().set_steps(2);
  return damage;
}

/// Returns the losses of two steps after loading.
inline Numbers load_and_continue(const RunTask& task, const RunLayout& layout, const Path& folder,
                                 const RankDevicesFactory& make_devices = make_default_devices) {
  Numbers losses;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world, make_devices);
    self.step(9);  // sets state that loading must replace
    EXPECT_FALSE(load(self, folder, world).has_value());
    const Numbers rank_losses = continue_training(self, task);
    if (rank == 0) losses = rank_losses;
  });
  return losses;
}

/// Trains two steps on simulated nodes, saves a local checkpoint with copies on another node, and loses the first node.
/// Returns the losses of two steps after the restart; with a single rank, no node is lost.
inline Numbers lose_node_and_continue(const RunTask& task, const RunLayout& layout, const Path& folder) {
  Numbers losses;
  const int ranks_per_node = std::max(1, layout.ranks() / 2);
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LocalStore store{.folder = folder / str("node_", rank / ranks_per_node), .run_id = "run", .nodes = {}};
    for (int r = 0; r < world.size(); ++r) store.nodes.push_back(r / ranks_per_node * ranks_per_node);
    const Path own = store.folder / part_folder_name(rank, world.size(), /*is_replica=*/false);
    const Log log(rank);
    {
      LayoutRank self(task, layout, world);
      for (i64 step = 0; step < 2; ++step) self.step(step);
      HostCopies source(shards_to_load(self.state()));
      const FileSystem files;
      CheckpointSave save({.folder = own, .coverage = Coverage::Part},
                          {.iteration = 2, .extra = {{kRunIdName, "run"}, {kSaveIdName, "save"}}}, world,
                          std::cref(log), std::cref(files));
      save.write(source);
      const Path part = save.gather_and_finish();
      const i64 replicas = count_nodes(store.nodes) > 1 ? 1 : 0;
      const auto group = world.split(0, rank);
      PartReplication replication(part, {.folder = store.folder, .peers = replica_peers(store.nodes, rank, replicas)},
                                  *group, std::cref(log));
      while (!replication.advance()) continue;
    }
    world.barrier();
    if (rank == 0 && world.size() > 1) std::filesystem::remove_all(store.folder);
    world.barrier();
    LayoutRank self(task, layout, world);
    self.step(9);  // sets state that loading must replace
    EXPECT_TRUE(restore_parts(store, 0, world, log));
    EXPECT_FALSE(load(self, own, world).has_value());
    const Numbers rank_losses = continue_training(self, task);
    if (rank == 0) losses = rank_losses;
  });
  return losses;
}

}  // namespace mcpp::test
