// A run that is interrupted in any way ends bitwise identical to an uninterrupted run.
#include <array>
#include <csignal>
#include <random>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using ResumeTest = EndToEnd;

const char* const kBf16 = "--training.precision=bf16";
const char* const kFp16 = "--training.precision=fp16";

/// Overwrites bytes in the middle of the checkpoint's tensors, or from byte `at` on.
void damage(const Path& checkpoint, i64 at = 0) {
  const Path path = checkpoint / "shard_00000-of-00001.h5";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file) << path;
  file.seekp(static_cast<std::streamoff>(at > 0 ? at : std::filesystem::file_size(path) / 2));
  file.write("\x5a\xa5\x5a", 3);
}

TEST_F(ResumeTest, IsBitwiseIdenticalAfterExitInterval) {
  for (const std::string precision : {"fp32", "bf16", "fp16", "fp8"}) {
    const Strings precision_args = in_precision(precision);
    const std::string whole = "whole_" + precision, parts = "parts_" + precision;
    train(whole, precision_args);
    train(parts, plus(precision_args, "--training.exit_interval=5"));
    losses(parts, 5);
    train(parts, plus(precision_args, "--training.exit_interval=9"));
    losses(parts, 9);
    EXPECT_CONTAINS(run_ok(pretrain(parts, precision_args)), "resuming from");
    expect_same_checkpoint(whole, parts);
    EXPECT_EQ(losses(whole, 12), losses(parts, 12));
  }
}

TEST_F(ResumeTest, KeepsAncestorsAfterLatestIsSetBack) {
  train("straight");
  const Strings keep{"--checkpoint.keep_latest_k=2", "--checkpoint.save_interval=1"};
  train("run", {"--checkpoint.keep_latest_k=12", "--checkpoint.save_interval=1"});
  write_file_atomic(folder_ / "run" / "latest", "iter_0000008\n");
  train("run", plus(keep, "--training.exit_interval=9"));
  // 10 to 12 were abandoned; 8 is the ancestor that a rollback would need.
  for (const char* name : {"iter_0000008", "iter_0000009", "iter_0000010", "iter_0000012"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / name)) << name;
  train("run", keep);
  expect_same_checkpoint("straight", "run");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "iter_0000010"));
}

TEST_F(ResumeTest, IsBitwiseIdenticalAfterSignal) {
  const Strings longer{kBf16, "--training.train_iters=150", "--training.eval_interval=0", "--training.eval_iters=0",
                       "--checkpoint.save_interval=0"};
  train("whole", longer);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string name = str("signal", number);
    test::Program program(pretrain(name, longer), root() / name);
    wait_for_lines(name, 10);
    program.signal(number);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.out, "; start the same command again to continue\n");
    train(name, longer);
    expect_same_checkpoint("whole", name);
    losses(name, 150);
  }
}

TEST_F(ResumeTest, SignalInterruptsEvaluation) {
  test::Program program(pretrain("run", {"--training.eval_interval=1", "--training.eval_iters=50000"}), root() / "run");
  wait_for_lines("run", 1);  // It is written before the evaluation of that iteration.
  program.signal(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.out, "; start the same command again to continue\n");
  EXPECT_EQ(metrics("run").size(), 1u) << "the evaluation was not interrupted";
}

/// Kills alternate between a random time and a point of a step or a save.
TEST_F(ResumeTest, IsBitwiseIdenticalWhenKilledAtAnyTime) {
  const Strings longer{"--training.train_iters=60", "--training.eval_interval=0", "--training.eval_iters=0",
                       "--checkpoint.save_interval=7"};
  constexpr std::array kPoints{"before_files", "after_files", "before_manifest", "before_rename", "before_latest",
                               "before_prune", "step"};
  train("whole", longer);
  std::mt19937 random(1);
  i64 kills = 0;
  for (unsigned round = 0; round < 10; ++round) {
    Strings args = longer;
    const bool by_clock = round % 2 == 1;
    if (!by_clock) {
      args.insert(args.end(), {"--fault_injection.kind=kill", "--fault_injection.iterations=0",
                               str("--fault_injection.iteration=", 7 * (1 + round / 2) + random() % 7),
                               str("--fault_injection.point=", kPoints[random() % kPoints.size()])});
    }
    test::Program program(pretrain("killed", args), root() / "killed");
    if (by_clock) {
      wait_for_lines("killed", 1 + 6 * round);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      program.signal(SIGKILL);
    }
    kills += program.wait().code == -SIGKILL;
  }
  EXPECT_EQ(kills, 10) << "the run ended before it was killed";
  train("killed", longer);
  expect_same_checkpoint("whole", "killed");
  EXPECT_EQ(losses("killed", 60), losses("whole", 60));
  EXPECT_EQ(leftovers(folder_ / "killed"), Strings{});
}

TEST_F(ResumeTest, UsesOlderCheckpointWhenNewestIsDamaged) {
  train("whole");
  train("run", {"--training.exit_interval=8"});
  damage(folder_ / "run/iter_0000008");
  const Outcome outcome = run(pretrain("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "iter_0000008/shard_00000-of-00001.h5 is damaged: ");
  EXPECT_CONTAINS(outcome.out, "resuming from " + at("run/iter_0000004"));
  expect_same_checkpoint("whole", "run");
  EXPECT_EQ(losses("whole", 12), losses("run", 12));
}

/// A damaged disk must not make a long training silently restart from scratch.
TEST_F(ResumeTest, RefusesToStartWhenAllCheckpointsAreDamaged) {
  train("run", {"--training.exit_interval=9"});
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run")) {
    if (entry.is_directory()) damage(entry.path());
  }
  const Outcome outcome = run(pretrain("run"));
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_CONTAINS(outcome.err, ": all checkpoints of this run (3) are damaged");
  EXPECT_CONTAINS(outcome.err, "move them to start from scratch");
}

/// Evaluation reads only the weights, so other damage does not matter.
TEST_F(ResumeTest, EvaluationUsesNewestCheckpointWithIntactWeights) {
  const auto checkpoint_of = [&] {
    const Outcome outcome = run({"evaluate", "--load=" + at("run"), "--text=" + (root() / "held_out.txt").string()});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (const char* name : {"iter_0000012", "iter_0000008"}) {
      if (outcome.out.find(name) != std::string::npos) return std::string(name);
    }
    return outcome.out;
  };
  train("run");
  EXPECT_EQ(checkpoint_of(), "iter_0000012");
  damage(folder_ / "run/iter_0000012");  // The middle of the file holds the optimizer state.
  EXPECT_EQ(checkpoint_of(), "iter_0000012");
  damage(folder_ / "run/iter_0000012", 5000);
  EXPECT_EQ(checkpoint_of(), "iter_0000008");
}

TEST_F(ResumeTest, RejectsChangedKeysUnlessAllowed) {
  train("run", {"--training.exit_interval=4"});
  const Strings changed{"--optimizer.lr=2e-2", "--training.seed=7"};
  const Outcome refused = run(pretrain("run", changed));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "optimizer.lr: 0.01 in the checkpoint, 0.02 now");
  EXPECT_CONTAINS(refused.err, "training.seed: 1234 in the checkpoint, 7 now");
  EXPECT_CONTAINS(refused.err, "--checkpoint.allow_changed_keys=");
  train("run", {changed[0], changed[1], "--checkpoint.allow_changed_keys=optimizer.lr,training.seed"});
  losses("run", 12);
}

TEST_F(ResumeTest, WarnsThatLearningRateChangesInLongerTraining) {
  train("run");
  const Outcome longer = run(pretrain("run", {"--training.train_iters=16"}));
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_CONTAINS(longer.err, "was 12 iterations and is now 16 iterations");
  EXPECT_CONTAINS(longer.err, "--optimizer.lr_decay_iters=12");
  EXPECT_EQ(run(pretrain("run", {"--training.train_iters=16"})).err, "") << "nothing has changed since";
  const Outcome pinned = run(pretrain("run", {"--training.train_iters=20", "--optimizer.lr_decay_iters=16",
                                              "--checkpoint.allow_changed_keys=optimizer.lr_decay_iters"}));
  EXPECT_EQ(pinned.err.find("learning rate"), std::string::npos) << pinned.err;
  EXPECT_CONTAINS(pinned.err, "is reshuffled");
  losses("run", 20);
}

TEST_F(ResumeTest, UsesSavedTokenizerWhenOriginalIsRemoved) {
  const Path tokenizer = folder_ / "tokenizer.model";
  std::filesystem::copy_file(root() / "tokenizer.model", tokenizer);
  const Strings longer{str("--data.tokenizer_model=", tokenizer.string()), "--training.train_iters=150"};
  test::Program program(pretrain("run", longer), root() / "run");
  wait_for_lines("run", 3);
  std::filesystem::remove(tokenizer);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 85);
  EXPECT_EQ(read_text_file(folder_ / "run/tokenizer.model"), read_text_file(root() / "tokenizer.model"));
  make_tokenizer(tokenizer, 380);
  const Strings unlabeled{longer[0], longer[1], "--data.data_path=" + at("copy"), "--model.vocab_size=400",
                          "--checkpoint.allow_changed_keys=data.data_path"};
  for (const char* ending : {".bin", ".idx"}) {
    std::filesystem::copy_file(dataset() + ending, at("copy") + ending);
  }
  const Outcome refused = run(pretrain("run", unlabeled));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "was trained with a different tokenizer");
  EXPECT_EQ(read_text_file(folder_ / "run/tokenizer.model"), read_text_file(root() / "tokenizer.model"))
      << "a rejected run left files";
}

TEST_F(ResumeTest, RejectsFolderInUse) {
  test::Program first(pretrain("run", {"--training.train_iters=100000"}), root() / "first");
  wait_for_lines("run", 1);
  const Outcome second = run(pretrain("run"));
  EXPECT_EQ(second.code, 2);
  EXPECT_CONTAINS(second.err, "is in use by host");
}

// Slurm has declared the node of the first run dead, but it was only disconnected.
TEST_F(ResumeTest, RequeuedJobTakesOverFolder) {
  const Strings job{"env", "SLURM_JOB_ID=77", "SLURM_CLUSTER_NAME=x"}, later = plus(job, "SLURM_RESTART_COUNT=1");
  test::Program first(pretrain("run", {"--training.train_iters=100000"}), root() / "first", 0, job);
  wait_for_lines("run", 30);  // more iterations than the second run makes
  const Outcome second = test::Program(pretrain("run"), root() / "second", 0, later).wait();
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_CONTAINS(second.err, "taking over from host");
  const Outcome cut_off = first.wait();
  EXPECT_EQ(cut_off.code, 2);
  EXPECT_CONTAINS(cut_off.err, "was taken over by host");
  EXPECT_EQ(run(pretrain("run")).code, 0);  // no file of the first run is left
}

TEST_F(ResumeTest, StopsAfterConsecutiveNonFiniteSteps) {
  train("run", {"--training.exit_interval=8"});
  const Outcome outcome =
      run(pretrain("run", {"--optimizer.lr=1e30", "--optimizer.lr_decay_style=constant", "--training.train_iters=40",
                           "--training.max_consecutive_skips=2", "--checkpoint.save_interval=0",
                           "--checkpoint.allow_changed_keys=optimizer.lr,optimizer.lr_decay_style"}));
  EXPECT_EQ(outcome.code, 17) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "is not finite; the step is skipped");
  EXPECT_CONTAINS(outcome.err, "3 consecutive steps had a non-finite or outlying loss or gradient");
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "intact");
  train("run");
  losses("run", 12);
}

/// Returns the loss scales in the metrics, by iteration.
std::vector<double> scales(const std::vector<nlohmann::json>& metrics) {
  std::vector<double> found;
  for (const nlohmann::json& line : metrics)
    if (line["type"] == "train") found.push_back(line["loss_scale"]);
  return found;
}

TEST_F(ResumeTest, IsBitwiseIdenticalWhileLossScaleAdapts) {
  const Strings fp16{kFp16, "--optimizer.hysteresis=3", "--optimizer.loss_scale_window=2", "--training.train_iters=30",
                     "--training.max_consecutive_skips=0"};
  const std::string out = run_ok(pretrain("whole", fp16));
  EXPECT_CONTAINS(out, "iteration 1: the gradient overflows; the step is skipped, the loss scale is now 4294967296.0");
  EXPECT_CONTAINS(out, "| loss scale: 2147483648.0 |");
  for (const char* until : {"2", "5", "17", "29"}) {
    Strings part = fp16;
    part.push_back(str("--training.exit_interval=", until));
    train("parts", part);
  }
  train("parts", fp16);
  expect_same_checkpoint("whole", "parts");
  EXPECT_EQ(scales(metrics("parts")), scales(metrics("whole")));
  EXPECT_EQ(scales(metrics("whole"))[2], 0x1p31) << "the third overflow halves";
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("whole")}), "fp16");
}

TEST_F(ResumeTest, StopsAtOverflowWithLowestLossScale) {
  const Outcome outcome =
      run(pretrain("run", {kFp16, "--optimizer.min_loss_scale=1e12", "--optimizer.hysteresis=1",
                           "--optimizer.initial_loss_scale=4e12", "--training.max_consecutive_skips=2"}));
  EXPECT_EQ(outcome.code, 17) << outcome.err;
  EXPECT_CONTAINS(outcome.out,
                  "iteration 2: the gradient overflows; the step is skipped, the loss scale is now 1000000000000.0");
  EXPECT_CONTAINS(outcome.err, "iteration 5: the gradient is not finite; the step is skipped");
  EXPECT_CONTAINS(outcome.err, "3 consecutive steps had a non-finite or outlying loss or gradient");
}

}  // namespace
}  // namespace mcpp
