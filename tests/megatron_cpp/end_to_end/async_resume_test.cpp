// Asynchronous checkpoints and the local tier: a run that is interrupted in any way ends bitwise identical to an
// uninterrupted run.
#include <csignal>
#include <cstdlib>
#include <random>

#include "checkpoint/directory/folder.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

class AsyncResumeTest : public EndToEnd {
 protected:
  static Strings without_evaluation(const Strings& more) {
    Strings words{"--training.eval_interval=0", "--training.eval_iters=0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string local() const { return "--checkpoint.local_save=" + at("local"); }
  /// Removes `checkpoint` from checkpoint.save, as if the nodes had died before it was written there.
  void drop_latest_checkpoint(const std::string& save, const char* checkpoint) const {
    fs::remove_all(folder_ / save / checkpoint);
    const std::vector<Path> remaining = checkpoints_in(folder_ / save);
    if (remaining.empty())
      fs::remove(folder_ / save / "latest");
    else
      write_file_atomic(folder_ / save / "latest", remaining.back().filename().string() + "\n");
  }
};

TEST_F(AsyncResumeTest, MatchesSynchronousSaves) {
  const Strings often{"--checkpoint.save_interval=3"};
  train("waited", often);
  const std::string log = run_ok(pretrain("overlapped", {often[0], "--checkpoint.async_save"}));
  EXPECT_CONTAINS(log, "overlapped/iter_0000003 in ");
  EXPECT_CONTAINS(log, "of which training waited for ");
  for (const std::string iteration : {"/iter_0000006", "/iter_0000009", "/iter_0000012"}) {
    expect_same_checkpoint("waited" + iteration, "overlapped" + iteration);
  }
}

/// A save that hangs before its copy blocks the next update. A save that hangs later blocks only the next save.
TEST_F(AsyncResumeTest, BlocksTrainingOnlyDuringCopy) {
  for (const auto& [point, last] : {std::pair{"before_files", 4u}, {"after_files", 8u}, {"before_manifest", 8u}}) {
    test::Program program(
        pretrain(point, without_evaluation({"--checkpoint.async_save", "--fault_injection.kind=hang",
                                            "--fault_injection.iteration=4", str("--fault_injection.point=", point)})),
        root() / "process");
    wait_for_lines(point, last);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(metrics(point).size(), last) << point;
    program.signal(SIGKILL);
    EXPECT_EQ(program.wait().code, -SIGKILL);
  }
}

/// Each save waits for the previous one.
TEST_F(AsyncResumeTest, MatchesSynchronousSavesWhenEveryIterationIsSaved) {
  const std::string every = "--checkpoint.save_interval=1";
  train("waited", {every});
  train("overlapped", {every, "--checkpoint.async_save"});
  for (const std::string iteration : {"/iter_0000010", "/iter_0000011", "/iter_0000012"})
    expect_same_checkpoint("waited" + iteration, "overlapped" + iteration);
}

TEST_F(AsyncResumeTest, IsBitwiseIdenticalWhenKilledAtAnyTime) {
  const Strings waited =
      without_evaluation({"--training.train_iters=60", "--checkpoint.save_interval=2", "--checkpoint.keep_latest_k=2"});
  Strings async_args = waited;
  async_args.push_back("--checkpoint.async_save");
  train("whole", waited);
  std::mt19937 random(1);
  i64 kills = 0;
  for (std::size_t lines = 1; lines < 50; lines += 8) {
    test::Program program(pretrain("killed", async_args), root() / "killed");
    wait_for_lines("killed", lines);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    program.signal(SIGKILL);
    kills += program.wait().code == -SIGKILL;
  }
  EXPECT_GE(kills, 3) << "the run ended before it was killed";
  train("killed", async_args);
  expect_same_checkpoint("whole", "killed");
  EXPECT_EQ(losses("killed", 60), losses("whole", 60));
  EXPECT_EQ(leftovers(folder_ / "killed"), Strings{});
}

TEST_F(AsyncResumeTest, IsBitwiseIdenticalWhenKilledAtEachPointOfSave) {
  train("whole");
  for (const std::string point :
       {"before_files", "after_files", "before_manifest", "before_rename", "before_latest", "before_prune"}) {
    const Strings async_args{"--checkpoint.async_save"};
    Strings fault = async_args;
    fault.insert(fault.end(),
                 {"--fault_injection.kind=kill", "--fault_injection.iteration=8", "--fault_injection.point=" + point});
    const Outcome killed = run(pretrain(point, fault));
    EXPECT_EQ(killed.code, -SIGKILL) << killed.err;
    const bool is_complete = point == "before_latest" || point == "before_prune";
    const std::string checkpoint = is_complete ? "/iter_0000008" : "/iter_0000004";
    EXPECT_CONTAINS(run_ok(pretrain(point, async_args)), "resuming from " + at(point + checkpoint));
    expect_same_checkpoint("whole", point);
    EXPECT_EQ(losses("whole", 12), losses(point, 12)) << point;
    EXPECT_EQ(leftovers(folder_ / point), Strings{}) << point;
  }
}

TEST_F(AsyncResumeTest, IsBitwiseIdenticalAfterErrorAtEachPointOfSave) {
  const Strings async_args{"--checkpoint.async_save"};
  train("whole");
  for (const std::string point :
       {"before_files", "after_files", "before_manifest", "before_rename", "before_latest", "before_prune"}) {
    Strings fault = async_args;
    fault.insert(fault.end(),
                 {"--fault_injection.kind=error", "--fault_injection.iteration=8", "--fault_injection.point=" + point});
    const Outcome failed = run(pretrain(point, fault));
    EXPECT_EQ(failed.code, 1) << failed.out;
    EXPECT_CONTAINS(failed.err, "megatron_cpp: error: an injected fault");
    EXPECT_EQ(leftovers(folder_ / point), Strings{}) << point;
    train(point, async_args);
    expect_same_checkpoint("whole", point);
    EXPECT_EQ(losses("whole", 12), losses(point, 12)) << point;
  }
}

/// The ranks communicate during the save, and none blocks on a rank that has failed.
TEST_F(AsyncResumeTest, IsBitwiseIdenticalAfterErrorOnOneRank) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Strings layout{"--checkpoint.async_save", "--training.micro_batch_size=1", "--parallel.zero_stage=3"};
  EXPECT_EQ(run_on(2, pretrain("whole", layout)).code, 0);
  for (const auto& [rank, point] : {std::pair{1, "before_files"}, {0, "before_manifest"}}) {
    Strings fault = layout;
    fault.insert(fault.end(), {"--fault_injection.kind=error", "--fault_injection.iteration=8",
                               str("--fault_injection.rank=", rank), str("--fault_injection.point=", point)});
    const Outcome failed = run_on(2, pretrain(point, fault));
    EXPECT_EQ(failed.code, 1) << failed.out << failed.err;
    EXPECT_CONTAINS(failed.err, str("rank ", rank, ": an injected fault"));
    EXPECT_EQ(run_on(2, pretrain(point, layout)).code, 0);
    expect_same_checkpoint("whole", point);
  }
}

TEST_F(AsyncResumeTest, SavesLatestIterationWhenSignalArrives) {
  const Strings longer =
      without_evaluation({"--training.train_iters=150", "--checkpoint.save_interval=4", "--checkpoint.async_save"});
  train("whole", longer);
  test::Program program(pretrain("run", longer), root() / "run");
  wait_for_lines("run", 10);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 85);
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "intact");
  train("run", longer);
  expect_same_checkpoint("whole", "run");
}

TEST_F(AsyncResumeTest, StopsRunAndKeepsCheckpointsWhenDiskIsFull) {
  const Outcome outcome = run(pretrain("run", {"--checkpoint.async_save"}), 100'000);
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "ulimit -f");
  EXPECT_EQ(leftovers(folder_ / "run"), Strings{});
}

TEST_F(AsyncResumeTest, ResumesFromLocalTierWhenItIsNewer) {
  train("whole");
  for (const char* mode : {"--checkpoint.async_save=false", "--checkpoint.async_save=true"}) {
    fs::remove_all(folder_ / "run");
    fs::remove_all(folder_ / "local");
    const Strings tiers{local(), "--checkpoint.local_save_interval=2", "--checkpoint.save_interval=6", mode};
    Strings stop = tiers;
    stop.push_back("--training.exit_interval=8");
    train("run", stop);
    EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("local/rank_00000-of-00001")}), "iter_0000008: intact");
    drop_latest_checkpoint("run", "iter_0000008");
    EXPECT_CONTAINS(run_ok(pretrain("run", tiers)), "resuming from " + at("local/rank_00000-of-00001/iter_0000008"));
    expect_same_checkpoint("whole", "run");
    EXPECT_EQ(losses("whole", 12), losses("run", 12));
    EXPECT_EQ(run_ok(pretrain("run", tiers)).find("resuming from " + at("local")), std::string::npos)
        << "checkpoint.save is newer";
  }
}

TEST_F(AsyncResumeTest, IgnoresLocalTierThatIsDamagedOrOfDifferentRun) {
  const Strings tiers{local(), "--checkpoint.local_save_interval=2", "--checkpoint.save_interval=6"};
  Strings stop = tiers;
  stop.push_back("--training.exit_interval=8");
  train("whole");
  train("run", stop);
  drop_latest_checkpoint("run", "iter_0000008");
  const Path file = folder_ / "local/rank_00000-of-00001/iter_0000008/shard_00000-of-00001.h5";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(5000).write("damage", 6);
  const Outcome damaged = run(pretrain("run", stop));
  EXPECT_EQ(damaged.code, 0) << damaged.err;
  EXPECT_CONTAINS(damaged.err, "the local checkpoint of iteration 8 is damaged on rank 0 and not used");
  EXPECT_CONTAINS(damaged.out, "resuming from " + at("run/iter_0000006"));
  // The user went back to an older checkpoint on purpose.
  write_file_atomic(folder_ / "run/latest", "iter_0000006\n");
  EXPECT_CONTAINS(run_ok(pretrain("run", stop)), "resuming from " + at("run/iter_0000006"));
  // There is a file in place of the checkpoint.
  drop_latest_checkpoint("run", "iter_0000008");
  fs::remove_all(folder_ / "local/rank_00000-of-00001/iter_0000008");
  write_file_atomic(folder_ / "local/rank_00000-of-00001/iter_0000008", "x");
  const std::string with_file = run_ok(pretrain("run", {stop[0], stop[1], stop[2], "--training.exit_interval=7"}));
  EXPECT_CONTAINS(with_file, "the local checkpoint of iteration 8 is not used: rank 0 has a file of this name");
  EXPECT_CONTAINS(with_file, "resuming from " + at("run/iter_0000006"));
  fs::remove(folder_ / "local/rank_00000-of-00001/iter_0000008");
  // The number of ranks differs.
  fs::create_directories(folder_ / "local/rank_00003-of-00004/iter_0000008");
  EXPECT_CONTAINS(run_ok(pretrain("run", stop)), "the checkpoints of 00004 ranks are not used");
  // A different run uses the same nodes.
  const Outcome other = run(pretrain("other", stop));
  EXPECT_EQ(other.code, 2) << other.out;
  EXPECT_CONTAINS(other.err,
                  ": belongs to a different run than the checkpoints of checkpoint.save; set a different folder");
}

TEST_F(AsyncResumeTest, UsesLocalTierOnAllRanksOrOnNone) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const auto train_on_two = [&](const std::string& save, const Strings& more) {
    const Outcome outcome = run_on(2, pretrain(save, more));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  };
  const Strings layout{"--training.micro_batch_size=1", "--parallel.zero_stage=1"};
  Strings tiers = layout;
  tiers.insert(tiers.end(), {local(), "--checkpoint.local_save_interval=2", "--checkpoint.save_interval=6",
                             "--checkpoint.async_save"});
  Strings stop = tiers;
  stop.push_back("--training.exit_interval=8");
  train_on_two("whole", layout);
  const auto interrupt = [&] {
    fs::remove_all(folder_ / "run");
    fs::remove_all(folder_ / "local");
    train_on_two("run", stop);
    drop_latest_checkpoint("run", "iter_0000008");
  };
  interrupt();
  EXPECT_CONTAINS(train_on_two("run", tiers), "resuming from " + at("local/rank_00000-of-00002/iter_0000008"));
  expect_same_checkpoint("whole", "run");
  EXPECT_EQ(losses("whole", 12), losses("run", 12));

  interrupt();
  fs::remove_all(folder_ / "local/rank_00001-of-00002");  // a node was replaced
  const std::string replaced = train_on_two("run", tiers);
  EXPECT_CONTAINS(replaced, "the local checkpoint of iteration 8 is not used: rank 1 has none");
  EXPECT_CONTAINS(replaced, "resuming from " + at("run/iter_0000006"));
  expect_same_checkpoint("whole", "run");

  interrupt();
  Strings pipeline = tiers;
  pipeline[1] = "--parallel.pipeline_model_parallel_size=2";
  const std::string log = train_on_two("run", pipeline);
  EXPECT_CONTAINS(log, "is from a different layout");
  EXPECT_CONTAINS(log, "resuming from " + at("run/iter_0000006"));
}

}  // namespace
}  // namespace mcpp
