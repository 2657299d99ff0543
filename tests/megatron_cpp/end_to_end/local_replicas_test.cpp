// Local checkpoints with copies on other nodes, here simulated ones: runs that lose ranks and nodes at any moment end
// bitwise identical to an uninterrupted run, and resume from the newest complete checkpoint.
#include <csignal>

#include "checkpoint/directory/folder.h"
#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

class LocalReplicasTest : public EndToEndOnRanks {
 protected:
  static constexpr int kRanks = 4;

  void TearDown() override { fs::remove_all(in_memory()); }

  /// Returns a folder in memory, which survives the processes of a run, as /dev/shm does on every node.
  static Path in_memory() {
    const Path shm = "/dev/shm";
    const bool has_shm = fs::is_directory(shm);
    return (has_shm ? shm : root()) / str("mcpp_local_replicas_", ::getpid());
  }
  static Path node(int index) { return in_memory() / str("node_", index); }

  /// Returns the options of two nodes of two ranks, with a checkpoint of every iteration in memory and one on the disk
  /// every 6 iterations.
  static Strings replicated(const Strings& more = {}) {
    Strings words{"--training.micro_batch_size=1",
                  "--checkpoint.save_interval=6",
                  "--checkpoint.local_save=" + in_memory().string(),
                  "--checkpoint.local_save_interval=1",
                  "--checkpoint.local_replicas=1",
                  "--checkpoint.local_ranks_per_node=2"};
    return joined(words, more);
  }
  static Strings killed(int rank, i64 iteration, const std::string& point) {
    return {"--fault_injection.kind=kill", str("--fault_injection.rank=", rank),
            str("--fault_injection.iteration=", iteration), "--fault_injection.point=" + point};
  }
  /// Runs until the fault kills a rank.
  void interrupt(const std::string& save, const Strings& args) {
    const Outcome outcome = run_on(kRanks, pretrain(save, args));
    EXPECT_NE(outcome.code, 0) << outcome.out;
    EXPECT_CONTAINS(outcome.err, "fault injection: kill");
  }
  /// Completes the run, which must equal `whole`. Returns its output.
  std::string complete(const std::string& save, const Strings& args) {
    const Outcome outcome = run_on(kRanks, pretrain(save, args));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    expect_same_checkpoint("whole", save);
    EXPECT_EQ(losses("whole", 12), losses(save, 12));
    return outcome.out + outcome.err;
  }
  void train_whole(const Strings& more) { train_on(kRanks, "whole", joined({"--training.micro_batch_size=1"}, more)); }
};

TEST_F(LocalReplicasTest, LosesAtMostOneStepWhenNodeIsLost) {
  const Strings zero{"--parallel.zero_stage=1"};
  train_whole(zero);
  for (const auto& [save, lost, rank] : {std::tuple("first", 0, 0), {"second", 1, 3}}) {
    interrupt(save, replicated(joined(zero, killed(rank, 9, "step"))));
    fs::remove_all(node(lost));
    const std::string log = complete(save, replicated(zero));
    EXPECT_CONTAINS(log, "the local checkpoint of iteration 8: restored from copies: the parts of ranks " +
                             std::string(lost == 0 ? "0, 1" : "2, 3"));
    EXPECT_CONTAINS(log, "resuming from " + (node(0) / "rank_00000-of-00004/iter_0000008").string());
    EXPECT_FALSE(fs::exists(in_memory())) << "the last state is in checkpoint.save";
  }
}

TEST_F(LocalReplicasTest, IsBitwiseIdenticalWhenKilledAtEachPointOfAsyncSave) {
  const Strings layout{"--parallel.zero_stage=1", "--optimizer.ema_decay=0.9", "--checkpoint.async_save"};
  train_whole({layout[0], layout[1]});
  int rank = 0;
  for (const std::string point : {"before_files", "after_files", "before_manifest", "before_rename", "before_latest",
                                  "before_prune", "before_replicas", "before_replica_rename"}) {
    const int lost = rank / 2;
    interrupt(point, replicated(joined(layout, killed(rank, 8, point))));
    if (rank % 2 == 0) fs::remove_all(node(lost));
    const std::string log = complete(point, replicated(layout));
    EXPECT_TRUE(log.find("iter_0000008") != log.npos || log.find("iter_0000007") != log.npos ||
                log.find("iter_0000006") != log.npos)
        << log;
    EXPECT_CONTAINS(log, "resuming from ");
    EXPECT_EQ(leftovers(folder_ / point), Strings{}) << point;
    rank = (rank + 1) % kRanks;
  }
}

TEST_F(LocalReplicasTest, FallsBackToDiskWhenBothCopiesAreLost) {
  train_whole({});
  interrupt("run", replicated(killed(2, 10, "step")));
  fs::remove_all(node(0) / "rank_00001-of-00004");
  fs::remove_all(node(1) / "replica_00001-of-00004");
  const std::string log = complete("run", replicated());
  EXPECT_CONTAINS(log, "the local checkpoint of iteration 9 is not complete: no copy of the state of ranks 1");
  EXPECT_CONTAINS(log, "resuming from " + at("run/iter_0000006"));
}

TEST_F(LocalReplicasTest, NamesDamagedCopiesAndUsesOthers) {
  const auto damage = [](const Path& part) {
    for (const auto& entry : fs::directory_iterator(part)) {
      if (entry.path().extension() == ".h5")
        std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(5000).write("damage", 6);
    }
  };
  train_whole({});
  interrupt("run", replicated(killed(2, 10, "step")));
  damage(node(0) / "rank_00001-of-00004/iter_0000009");
  const std::string copied = complete("run", replicated());
  EXPECT_CONTAINS(copied, "the part on the node of rank 0 of the state of rank 1 is damaged");
  EXPECT_CONTAINS(copied, "resuming from " + (node(0) / "rank_00000-of-00004/iter_0000009").string());

  interrupt("again", replicated(killed(2, 10, "step")));
  damage(node(0) / "rank_00001-of-00004/iter_0000009");
  damage(node(1) / "replica_00001-of-00004/iter_0000009");
  const std::string older = complete("again", replicated());
  EXPECT_CONTAINS(older, "the copy on the node of rank 2 of the state of rank 1 is damaged");
  EXPECT_CONTAINS(older, "the local checkpoint of iteration 9 is not used: rank 1 has no intact copy left");
  EXPECT_CONTAINS(older, "resuming from " + (node(0) / "rank_00000-of-00004/iter_0000008").string());
}

TEST_F(LocalReplicasTest, UsesDiskAfterChangeOfLayout) {
  const Strings zero{"--parallel.zero_stage=1"};
  interrupt("run", replicated(joined(zero, killed(0, 9, "step"))));
  const Outcome outcome =
      run_on(kRanks, pretrain("run", replicated(joined(zero, {"--parallel.pipeline_model_parallel_size=2"}))));
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.out, "is from a different layout");
  EXPECT_CONTAINS(outcome.out, "resuming from " + at("run/iter_0000006"));
}

TEST_F(LocalReplicasTest, ChecksSpaceAndNodesBeforeFirstStep) {
  const auto fails = [&](const Strings& more, const std::string& message) {
    const Outcome outcome = run_on(2, pretrain("run", joined({"--training.train_iters=4"}, replicated(more))));
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, message);
  };
  fails({"--checkpoint.local_keep_latest_k=100000000"}, "not enough space for local checkpoints: 2 ranks need ");
  fails({"--checkpoint.local_keep_latest_k=1"}, "needs checkpoint.local_keep_latest_k of at least 2");
  if (in_memory().parent_path() == "/dev/shm")
    fails({"--checkpoint.local_keep_latest_k=0"}, "is in memory, which checkpoint.local_keep_latest_k = 0");
  // One node: the run continues, without copies.
  const Outcome one = run_on(2, pretrain("run", joined({"--training.train_iters=4"}, replicated())));
  EXPECT_EQ(one.code, 0) << one.out << one.err;
  EXPECT_CONTAINS(one.err,
                  "checkpoint.local_replicas = 1: needs 2 nodes, but the run has 1; copies on 0 other nodes are kept");
}

}  // namespace
}  // namespace mcpp
