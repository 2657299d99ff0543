// Copies of local checkpoints on simulated nodes, which have separate folders: replication, and recovery of lost, moved
// and damaged parts.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/writer.h"
#include "comm/local.h"
#include "megatron_cpp/resume/part_recovery.h"
#include "megatron_cpp/resume/part_replication.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/shard_list.h"

namespace mcpp::local_parts_test {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 4, kRanksPerNode = 2;
constexpr i64 kElements = 5000;

class LocalPartsTest : public testing::Test {
 protected:
  Path node_folder(int node) const { return scratch_ / str("node_", node); }
  Path part(int rank, i64 iteration) const {
    return node_folder(rank / kRanksPerNode) / part_folder_name(rank, kRanks, false) / checkpoint_name(iteration);
  }
  /// Returns the copy of a rank's part, on the other node.
  Path copy(int rank, i64 iteration) const {
    return node_folder(1 - rank / kRanksPerNode) / part_folder_name(rank, kRanks, true) / checkpoint_name(iteration);
  }

  LocalStore store(int rank, const std::string& run = "run") const {
    LocalStore store{.folder = node_folder(rank / kRanksPerNode), .run_id = run, .nodes = {}};
    for (int r = 0; r < kRanks; ++r) store.nodes.push_back(r / kRanksPerNode * kRanksPerNode);
    return store;
  }

  /// Saves a local checkpoint whose values depend on rank and iteration. Replicates it if requested.
  void save(i64 iteration, const std::string& save_id, bool should_replicate = true, const std::string& run = "run") {
    run_local_ranks(kRanks, [&](Communicator& world, int rank) {
      const auto group = world.split(0, rank);
      const Log& log = logs_[static_cast<std::size_t>(rank)];
      CpuDevice device;
      Tensor values = Tensor::empty({kElements}, DType::F32, device, MemoryClass::Other);
      std::iota(values.data<float>(), values.data<float>() + kElements, first_value(rank, iteration));
      const std::vector<NamedShard> shards{
          NamedShard("x", slab({kElements * kRanks}, 0, rank * kElements, kElements), values)};
      HostCopies source(shards);
      RunState state{.iteration = iteration, .extra = {{kRunIdName, run}, {kSaveIdName, save_id}}};
      const Retention retention{.keep_latest_k = 2, .owner_name = kRunIdName};
      const Path folder = part(rank, iteration).parent_path();
      const FileSystem files;
      CheckpointSave save({.folder = folder, .retention = retention, .coverage = Coverage::Part}, state, world, log,
                          files);
      save.write(source);
      const Path saved = save.gather_and_finish();
      if (!should_replicate) return;
      PartReplication replication(
          saved,
          {.folder = store(rank).folder, .peers = replica_peers(store(rank).nodes, rank, 1), .retention = retention},
          *group, std::cref(log));
      while (!replication.advance()) continue;
    });
  }

  static float first_value(int rank, i64 iteration) { return static_cast<float>(1000 * rank + 10 * iteration); }

  /// Restores the newest checkpoint after iteration `newer_than`. Returns true if there is one, identically on all
  /// ranks.
  bool restore(i64 newer_than = 0, const std::string& run = "run") {
    std::array<bool, kRanks> found{};
    run_local_ranks(kRanks, [&](Communicator& world, int rank) {
      found[static_cast<std::size_t>(rank)] = restore_parts(store(rank, run), newer_than, world, Log(rank));
    });
    for (const bool one : found) EXPECT_EQ(one, found[0]);
    return found[0];
  }

  /// Expects that every rank can load its own part of an iteration.
  void expect_parts(i64 iteration) {
    CpuDevice device;
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(find_problems(part(rank, iteration)), std::vector<std::string>()) << rank;
      CheckpointReader reader(part(rank, iteration));
      NamedShard target("x", slab({kElements * kRanks}, 0, rank * kElements, kElements),
                        Tensor::empty({kElements}, DType::F32, device, MemoryClass::Other));
      reader.read(target);
      EXPECT_EQ(target.data.data<float>()[7], first_value(rank, iteration) + 7) << rank;
    }
  }

  static void damage(const Path& part) {
    for (const auto& entry : fs::directory_iterator(part)) {
      if (entry.path().extension() != ".h5") continue;
      const auto middle = static_cast<std::streamoff>(entry.file_size() / 2);
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(middle);
      const char byte = static_cast<char>(file.get() ^ 0x10);
      file.seekp(middle);
      file.put(byte);
    }
  }

  test::ScratchFolder scratch_;
  const std::array<Log, kRanks> logs_{Log(0), Log(1), Log(2), Log(3)};
};

TEST_F(LocalPartsTest, KeepsCopiesOfTwoCheckpointsOnOtherNode) {
  for (const i64 iteration : {1, 2, 3}) save(iteration, str("save", iteration));
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const i64 iteration : {2, 3}) EXPECT_EQ(find_problems(copy(rank, iteration)), std::vector<std::string>());
    EXPECT_FALSE(fs::exists(copy(rank, 1)));
    EXPECT_EQ(read_text_file(copy(rank, 3) / kManifestName), read_text_file(part(rank, 3) / kManifestName));
  }
  EXPECT_TRUE(restore());
  expect_parts(3);
}

TEST_F(LocalPartsTest, RestoresLostNode) {
  save(1, "a");
  save(2, "b");
  for (const int node : {0, 1}) {
    fs::remove_all(node_folder(node));
    EXPECT_TRUE(restore());
    expect_parts(2);
    save(2, "c");  // also restores the copies on the lost node
  }
}

TEST_F(LocalPartsTest, SendsPartsWhenRanksRunOnOtherNodes) {
  save(1, "a", /*should_replicate=*/false);
  fs::rename(node_folder(0), scratch_ / "moved");
  fs::rename(node_folder(1), node_folder(0));
  fs::rename(scratch_ / "moved", node_folder(1));
  EXPECT_TRUE(restore());
  expect_parts(1);
}

TEST_F(LocalPartsTest, UsesCopyWhenPartIsDamaged) {
  save(1, "a");
  damage(part(1, 1));
  fs::resize_file(part(2, 1) / kManifestName, 20);
  EXPECT_TRUE(restore());
  expect_parts(1);
}

TEST_F(LocalPartsTest, UsesOlderCheckpointWhenBothCopiesAreLostOrDamaged) {
  save(1, "a");
  save(2, "b");
  fs::remove_all(part(0, 2));
  damage(copy(0, 2));
  EXPECT_TRUE(restore());
  expect_parts(1);
  EXPECT_FALSE(restore(/*newer_than=*/1));
  damage(part(3, 1));
  damage(copy(3, 1));
  EXPECT_FALSE(restore());
}

TEST_F(LocalPartsTest, DoesNotCombineDifferentSaves) {
  save(1, "a");
  save(2, "first");
  const Path old = scratch_ / "old";
  fs::copy(part(3, 2), old, fs::copy_options::recursive);
  save(2, "second");
  // Rank 3 died before it replaced its part and its copy.
  fs::remove_all(part(3, 2));
  fs::remove_all(copy(3, 2));
  fs::copy(old, part(3, 2), fs::copy_options::recursive);
  EXPECT_TRUE(restore());
  EXPECT_FALSE(restore(/*newer_than=*/1)) << "the parts of iteration 2 belong to different saves";
}

TEST_F(LocalPartsTest, IgnoresOtherRuns) {
  save(1, "a", true, "other");
  EXPECT_FALSE(restore());
  EXPECT_TRUE(restore(0, "other"));
}

/// A copy that arrives damaged does not replace the previous one.
TEST_F(LocalPartsTest, DropsCopyThatIsDamagedWhenItArrives) {
  save(1, "a");
  save(2, "b", /*should_replicate=*/false);
  damage(part(1, 2));
  testing::internal::CaptureStderr();
  run_local_ranks(kRanks, [&](Communicator& world, int rank) {
    const auto group = world.split(0, rank);
    PartReplication replication(part(rank, 2),
                                {.folder = store(rank).folder, .peers = replica_peers(store(rank).nodes, rank, 1)},
                                *group, std::cref(logs_[static_cast<std::size_t>(rank)]));
    while (!replication.advance()) continue;
  });
  EXPECT_CONTAINS(testing::internal::GetCapturedStderr(), "the copy of iter_0000002 of rank 1 arrived damaged");
  EXPECT_TRUE(fs::exists(copy(0, 2)));
  EXPECT_FALSE(fs::exists(copy(1, 2)));
  EXPECT_TRUE(fs::exists(copy(1, 1)));
  for (const auto& entry : fs::recursive_directory_iterator(scratch_.path()))
    EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
}

TEST_F(LocalPartsTest, RemovesUnusedPartsOfOwnRunOnly) {
  save(1, "a");
  const Path left = node_folder(0) / part_folder_name(5, 8, false),
             other = node_folder(0) / part_folder_name(6, 8, false);
  fs::copy(part(0, 1).parent_path(), left, fs::copy_options::recursive);
  fs::create_directories(other);
  fs::copy(part(0, 1), other / checkpoint_name(1), fs::copy_options::recursive);
  remove_unused_parts(store(0, "other run"), {}, Log());
  EXPECT_TRUE(fs::exists(left));
  remove_unused_parts(store(0), {part_folder_name(0, kRanks, false), part_folder_name(6, 8, false)}, Log());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(part(0, 1)));
  EXPECT_FALSE(fs::exists(part(1, 1)));
}

}  // namespace
}  // namespace mcpp::local_parts_test
