// Injected faults (section [fault_injection]) in the real program: its reaction, and the behavior after a restart.
#include <csignal>

#include "checkpoint/directory/folder.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Strings = std::vector<std::string>;

const Strings kSkip, kRollBack{"--training.nan_policy=rollback"};

Strings operator+(Strings a, const Strings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class FaultInjectionTest : public EndToEnd {
 protected:
  static Strings fault(const std::string& kind, i64 iteration, const Strings& more = {}) {
    return Strings{"--fault_injection.kind=" + kind, str("--fault_injection.iteration=", iteration)} + more;
  }
  /// Returns the name of the latest checkpoint in `save`, or "none".
  std::string latest(const std::string& save) const {
    const std::optional<Path> found = latest_in(folder_ / save);
    return found ? found->filename().string() : "none";
  }
  /// Expects that the tensors of two checkpoints are bitwise identical, whatever their progress.
  void expect_same_tensors(const std::string& a, const std::string& b) const {
    EXPECT_CONTAINS(run_ok({"checkpoint", "diff", at(a), at(b)}), " tensors compared, 0 differ");
  }
};

TEST_F(FaultInjectionTest, ResumesFromIntactCheckpointWhenKilledDuringSave) {
  train("whole");
  const std::vector<std::pair<std::string, std::string>> points{
      {"before_files", "iter_0000004"},  {"after_files", "iter_0000004"},   {"before_manifest", "iter_0000004"},
      {"before_rename", "iter_0000004"}, {"before_latest", "iter_0000008"}, {"before_prune", "iter_0000008"}};
  for (const auto& [point, checkpoint] : points) {
    const Outcome killed = run(pretrain(point, fault("kill", 8, {"--fault_injection.point=" + point})));
    EXPECT_EQ(killed.code, -SIGKILL) << killed.err;
    EXPECT_CONTAINS(killed.err, "fault injection: kill on rank 0, iteration 8, " + point);
    EXPECT_CONTAINS(run_ok(pretrain(point)), "resuming from " + at(point + "/" + checkpoint));
    expect_same_checkpoint("whole", point);
    EXPECT_EQ(losses("whole", 12), losses(point, 12)) << point;
    EXPECT_EQ(leftovers(folder_ / point), Strings{}) << point;
  }
}

/// The next run only has to publish the last checkpoint.
TEST_F(FaultInjectionTest, PublishesLastCheckpointAtNextStartWhenKilledBeforePublication) {
  EXPECT_EQ(run(pretrain("run", fault("kill", 12, {"--fault_injection.point=before_latest"}))).code, -SIGKILL);
  EXPECT_EQ(latest("run"), "iter_0000008");
  EXPECT_CONTAINS(run_ok(pretrain("run")), "all 12 iterations are done");
  EXPECT_EQ(latest("run"), "iter_0000012");
}

TEST_F(FaultInjectionTest, ExitsWithConfiguredCode) {
  const Outcome error = run(pretrain("run", fault("error", 3)));
  EXPECT_EQ(error.code, 1);
  EXPECT_CONTAINS(error.err, "megatron_cpp: error: an injected fault");
  const Outcome exit = run(pretrain("run", fault("exit", 3, {"--fault_injection.exit_code=75"})));
  EXPECT_EQ(exit.code, 75);
  const Outcome refused = run(pretrain("run", fault("nan_loss", 3, {"--fault_injection.point=before_files"})));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, ": applies only to the kinds error, exit, kill and hang");
}

TEST_F(FaultInjectionTest, HangNeverEnds) {
  test::Program program(pretrain("run", fault("hang", 3)), root() / "run");
  wait_for_lines("run", 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LE(metrics("run").size(), 2u);
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().code, -SIGKILL);
}

TEST_F(FaultInjectionTest, SkipsStepWithNonFiniteLossOrGradient) {
  for (const char* kind : {"nan_loss", "nan_grad"}) {
    const Outcome outcome = run(pretrain(kind, fault(kind, 6)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.err, "is not finite; the step is skipped, the weights are unchanged (samples 40 to 47)");
    const std::string interrupted = str(kind, "_interrupted");
    train(interrupted, fault(kind, 6, {"--training.exit_interval=7"}));
    train(interrupted, fault(kind, 6));
    expect_same_checkpoint(kind, interrupted);
  }
  expect_same_checkpoint("nan_loss", "nan_grad");
  train("whole");
  const Outcome other = run({"checkpoint", "diff", at("whole"), at("nan_loss")});
  EXPECT_EQ(other.code, 1) << other.err;
  EXPECT_CONTAINS(other.out, "skipped_iterations: 0 and 1");
}

TEST_F(FaultInjectionTest, StopPolicyEndsRunAtFirstNan) {
  const Outcome outcome = run(pretrain("run", fault("nan_grad", 6, {"--training.nan_policy=stop"})));
  EXPECT_EQ(outcome.code, 17) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "iteration 6: the gradient is not finite (samples 40 to 47)");
  EXPECT_EQ(latest("run"), "iter_0000004");
  train("whole");
  train("run");  // The cause of the fault is gone.
  expect_same_checkpoint("whole", "run");
}

/// The weights match those of a run that skipped all steps since the checkpoint, and an interruption does not change
/// them.
TEST_F(FaultInjectionTest, RollbackSkipsStepsSinceCheckpoint) {
  const Strings nan_fault = fault("nan_loss", 7) + kRollBack;
  const Outcome outcome = run(pretrain("run", nan_fault));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "(samples 48 to 55); rolling back to the newest intact checkpoint (1 of 3)");
  EXPECT_CONTAINS(outcome.out, "the weights are those of iteration 4; continuing after sample 55");
  losses("run", 12);
  train("skipping", fault("nan_loss", 5, {"--fault_injection.iterations=3"}));
  expect_same_tensors("run", "skipping");

  EXPECT_EQ(run(pretrain("killed", fault("kill", 6) + kRollBack)).code, -SIGKILL);
  train("killed", nan_fault);
  expect_same_checkpoint("run", "killed");
  train("interrupted", nan_fault + Strings{"--training.exit_interval=9"});
  train("interrupted", nan_fault);
  expect_same_checkpoint("run", "interrupted");
}

/// The checkpoint written at a stop must not become the rollback target, even if only one checkpoint is kept.
TEST_F(FaultInjectionTest, RollbackTargetIsUnchangedByEarlierStop) {
  const Strings nan_fault = fault("nan_loss", 7) + kRollBack;
  for (const std::string keep : {"3", "1"}) {
    const Strings settings = nan_fault + Strings{"--checkpoint.keep_latest_k=" + keep};
    train("whole" + keep, settings);
    train("stopped" + keep, settings + Strings{"--training.exit_interval=6"});
    EXPECT_EQ(latest("stopped" + keep), "iter_0000006");
    EXPECT_CONTAINS(run_ok(pretrain("stopped" + keep, settings)), "the weights are those of iteration 4");
    expect_same_checkpoint("whole" + keep, "stopped" + keep);
  }
}

TEST_F(FaultInjectionTest, RollsBackToNewerLocalCheckpointAfterEarlierStop) {
  for (const std::string run : {"whole", "stopped"}) {
    const Strings settings =
        fault("nan_loss", 8) + kRollBack +
        Strings{"--checkpoint.local_save=" + at(run + "_local"), "--checkpoint.local_save_interval=2"};
    if (run == "stopped") train(run, settings + Strings{"--training.exit_interval=7"});
    EXPECT_CONTAINS(run_ok(pretrain(run, settings)), "the weights are those of iteration 6");
  }
  expect_same_checkpoint("whole", "stopped");
}

/// The checkpoint of a stop is the rollback target if there is no other, e.g. if it alone was copied to another folder.
TEST_F(FaultInjectionTest, RollsBackToInterimCheckpointWhenNoOtherExists) {
  train("run", kRollBack + Strings{"--training.exit_interval=6"});
  std::filesystem::create_directories(folder_ / "copy");
  std::filesystem::copy(folder_ / "run/iter_0000006", folder_ / "copy/iter_0000006",
                        std::filesystem::copy_options::recursive);
  const Outcome outcome = run(pretrain("copy", fault("nan_loss", 7) + kRollBack));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "the weights are those of iteration 6");
}

TEST_F(FaultInjectionTest, RollsBackToStartBeforeFirstSave) {
  const Outcome outcome = run(pretrain("run", fault("nan_grad", 2) + kRollBack));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "the weights are those of iteration 0; continuing after sample 15");
  losses("run", 12);
}

TEST_F(FaultInjectionTest, LimitsRollbacksAcrossRestarts) {
  const Strings limited = kRollBack + Strings{"--training.max_rollbacks=1"};
  train("run", fault("nan_loss", 5) + limited + Strings{"--training.exit_interval=9"});
  const Outcome outcome = run(pretrain("run", fault("nan_loss", 10) + limited));
  EXPECT_EQ(outcome.code, 17) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "training.max_rollbacks is 1");
  const Outcome refused = run(pretrain("run", kRollBack + Strings{"--checkpoint.save_interval=0"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, ": rollback needs checkpoints to roll back to");
}

TEST_F(FaultInjectionTest, ResetsSpikeHistoryWhenPolicyWasOff) {
  const Strings detector{"--training.spike_window=4", "--training.spike_z_score=100"};
  const auto until = [](i64 stop) { return Strings{str("--training.exit_interval=", stop)}; };
  train("run", detector + until(6));
  train("run", until(8) + Strings{"--training.spike_policy=off"});
  // Iterations 3 to 6 are not compared with iteration 10.
  const Outcome outcome = run(pretrain("run", detector + fault("spike", 10)));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("is an outlier"), std::string::npos) << outcome.err;
}

TEST_F(FaultInjectionTest, LogsSkipsOrRollsBackSpike) {
  const Strings detector{"--training.spike_window=4", "--training.spike_z_score=100"},
      spike = fault("spike", 10) + detector, rolls_back{"--training.spike_policy=rollback"};
  const Outcome warned = run(pretrain("warn", spike));
  EXPECT_EQ(warned.code, 0) << warned.err;
  EXPECT_CONTAINS(warned.err, "iteration 10: loss or gradient is an outlier: loss ");
  EXPECT_EQ(run(pretrain("off", fault("spike", 10) + Strings{"--training.spike_policy=off"})).err, "");
  expect_same_tensors("warn", "off");

  train("skip", spike + Strings{"--training.spike_policy=skip"});
  train("nan", fault("nan_grad", 10));
  expect_same_tensors("skip", "nan");
  train("back", spike + rolls_back);
  train("nan_twice", fault("nan_grad", 9, {"--fault_injection.iterations=2"}));
  expect_same_tensors("back", "nan_twice");
  EXPECT_EQ(run(pretrain("killed", fault("kill", 10) + detector + rolls_back)).code, -SIGKILL);
  train("killed", spike + rolls_back);  // The history for the comparison comes from the checkpoint.
  expect_same_checkpoint("back", "killed");
}

TEST_F(FaultInjectionTest, NeverSavesNonFiniteWeights) {
  const Outcome outcome = run(pretrain("run", fault("nan_weights", 8)));
  EXPECT_EQ(outcome.code, 17) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "a weight is not finite (rank 0: ");
  EXPECT_EQ(latest("run"), "iter_0000004");
  const Outcome back = run(pretrain("run", fault("nan_weights", 8) + kRollBack));
  EXPECT_EQ(back.code, 0) << back.err;
  train("skipping", fault("nan_loss", 5, {"--fault_injection.iterations=4"}));
  expect_same_tensors("run", "skipping");
}

class FaultInjectionOnRanksTest : public FaultInjectionTest {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
    FaultInjectionTest::SetUp();
  }
};

TEST_F(FaultInjectionOnRanksTest, AllRanksSkipOrRollBackNanOfOneRank) {
  const std::vector<Strings> layouts{{"--parallel.tensor_model_parallel_size=2"},
                                     {"--parallel.pipeline_model_parallel_size=2"},
                                     {"--parallel.zero_stage=1"}};
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::string one = str("one", i), all = str("all", i);
    const Strings policy = layouts[i] + (i == 1 ? kRollBack : kSkip);
    const Outcome outcome = run_on(2, pretrain(one, policy + fault("nan_grad", 7, {"--fault_injection.rank=1"})));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_EQ(run_on(2, pretrain(all, policy + fault("nan_loss", 7))).code, 0);
    expect_same_checkpoint(one, all);
  }
}

/// A NaN that enters the gradient reduction is gone in the next step, in every reduction format.
TEST_F(FaultInjectionOnRanksTest, RecoversFromNanBeforeReduction) {
  const std::vector<Strings> reductions{{"--parallel.zero_stage=0"},
                                        {"--parallel.zero_stage=0", "--parallel.power_sgd_rank=2"},
                                        {"--parallel.zero_stage=1"},
                                        {"--parallel.zero_stage=1", "--parallel.grad_reduce_dtype=bf16"},
                                        {"--parallel.zero_stage=1", "--parallel.zero_quantized_gradients"},
                                        {"--parallel.zero_stage=2", "--parallel.zero_quantized_gradients"},
                                        {"--parallel.zero_stage=3", "--parallel.zero_quantized_gradients"}};
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    SCOPED_TRACE(join(reductions[i], " "));
    const std::string local = str("local", i), loss = str("loss", i);
    const Outcome outcome =
        run_on(2, pretrain(local, reductions[i] + fault("nan_local_grad", 7, {"--fault_injection.rank=1"})));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "iteration 7: the gradient is not finite; the step is skipped");
    EXPECT_EQ(run_on(2, pretrain(loss, reductions[i] + fault("nan_loss", 7))).code, 0);
    expect_same_checkpoint(local, loss);
  }
}

TEST_F(FaultInjectionOnRanksTest, LowersLossScaleOnceWhenFp16OverflowsBeforeReduction) {
  const Outcome outcome =
      run_on(2, pretrain("run", in_precision("fp16") +
                                    Strings{"--parallel.zero_stage=1", "--parallel.zero_quantized_gradients",
                                            "--optimizer.hysteresis=1"} +
                                    fault("nan_local_grad", 7, {"--fault_injection.rank=1"})));
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  i64 skipped = 0;
  for (const nlohmann::json& line : records("run", "train")) skipped += line["skipped_iterations"].get<i64>();
  EXPECT_EQ(skipped, 1);
}

TEST_F(FaultInjectionOnRanksTest, KeepsOlderCheckpointWhenKilledDuringSave) {
  EXPECT_EQ(run_on(2, pretrain("whole")).code, 0);
  const Outcome killed =
      run_on(2, pretrain("run", fault("kill", 8, {"--fault_injection.rank=1", "--fault_injection.point=after_files"})));
  EXPECT_NE(killed.code, 0);
  EXPECT_EQ(latest("run"), "iter_0000004");
  EXPECT_EQ(run_on(2, pretrain("run")).code, 0);
  expect_same_checkpoint("whole", "run");
}

TEST_F(FaultInjectionOnRanksTest, LauncherReturnsExitCodeOfPolicy) {
  const Outcome outcome =
      run_on(2, pretrain("run", fault("nan_loss", 3, {"--fault_injection.rank=1", "--training.nan_policy=stop"})));
  EXPECT_EQ(outcome.code, 17) << outcome.out << outcome.err;
}

}  // namespace
}  // namespace mcpp
