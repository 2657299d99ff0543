// Effects of the environment on a run: files that change while it runs, closed outputs, removed folders, unusual
// settings.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class EnvironmentTest : public EndToEnd {
 protected:
  /// Returns the arguments of a long training without evaluations and saves.
  Strings endless(const std::string& save, const Strings& more = {}) const {
    Strings args = pretrain(save, {"--training.train_iters=1000000", "--training.eval_interval=0",
                                   "--training.eval_iters=0", "--checkpoint.save_interval=0"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  /// Runs `pretrain` under a shell script that changes its environment and then runs "$@".
  Outcome run_in_shell(const std::string& save, const std::string& script) const {
    return test::Program(pretrain(save), root() / "shell", 0, {"sh", "-c", script, "sh"}).wait();
  }
};

TEST_F(EnvironmentTest, NamesTokenFileThatShrinks) {
  for (const char* end : {".bin", ".idx"}) std::filesystem::copy_file(dataset() + end, at("text") + end);
  test::Program program(endless("run", {str("--data.data_path=[\"", at("text"), "\"]"), "--data.prefetch_batches=0"}),
                        root() / "shrinking");
  wait_for_lines("run", 3);
  std::filesystem::resize_file(at("text") + ".bin", 0);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_CONTAINS(outcome.err, at("text") + ".bin");
  EXPECT_CONTAINS(outcome.err, "truncated while in use");
}

TEST_F(EnvironmentTest, TrainingContinuesWithoutOutputs) {
  train("whole");
  EXPECT_EQ(run_in_shell("closed", "exec \"$@\" >&- 2>&-").code, 0);
  expect_same_checkpoint("whole", "closed");
  EXPECT_EQ(run_in_shell("pipe", "(\"$@\"; echo $? >&2) | true").err, "0\n");
  expect_same_checkpoint("whole", "pipe");
  EXPECT_EQ(run_in_shell("full", "exec \"$@\" >/dev/full").code, 0);
  expect_same_checkpoint("whole", "full");
}

/// A command must not succeed if only half of its output was written.
TEST_F(EnvironmentTest, CommandFailsWhenOutputIsIncomplete) {
  const auto outcome = [&](const std::string& script) {
    return test::Program({"config", "--help"}, root() / "shell", 0, {"sh", "-c", script, "sh"}).wait();
  };
  const Outcome full = outcome("exec \"$@\" >/dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_CONTAINS(full.err, "standard output: part of the output could not be written");
  EXPECT_EQ(outcome("exec \"$@\" >&-").code, 0);
  EXPECT_EQ(outcome("(\"$@\"; echo $? >&2) | head -n 1 >/dev/null").err, "0\n");
}

TEST_F(EnvironmentTest, IsIndependentOfLocaleAndTimeZone) {
  train("whole");
  EXPECT_EQ(run_in_shell("german", "LC_ALL=de_DE.UTF-8 LANG=de_DE.UTF-8 TZ=Pacific/Apia exec \"$@\"").code, 0);
  expect_same_checkpoint("whole", "german");
  EXPECT_EQ(losses("whole", 12), losses("german", 12));
}

TEST_F(EnvironmentTest, RunsWithFewFileDescriptors) {
  const Outcome outcome = run_in_shell("few", "ulimit -n 32; exec \"$@\"");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(EnvironmentTest, TrainingContinuesWhenMetricsFolderIsRemoved) {
  std::filesystem::create_directories(at("metrics"));
  const std::string metrics = str("--logging.metrics_path=", at("metrics/metrics.jsonl"));
  test::Program program(endless("run", {metrics}), root() / "metrics_program");
  wait_for_lines("metrics", 3);
  std::filesystem::remove_all(at("metrics"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 85) << outcome.err;
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "intact");
}

/// The duration limit of a batch system counts from the start of the process, including everything before the first
/// step.
TEST_F(EnvironmentTest, DurationCountsFromProcessStart) {
  const Strings args = endless("run", {"--training.exit_duration_in_mins=0.05"});
  const Outcome outcome = test::Program(args, root() / "shell", 0, {"sh", "-c", "sleep 4; exec \"$@\"", "sh"}).wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "training.exit_duration_in_mins has elapsed");
  EXPECT_LE(metrics("run").size(), 3u) << outcome.out;
}

TEST_F(EnvironmentTest, WritesMetricsOfEveryIterationOnRequest) {
  train("each");
  train("requested", {"--logging.log_interval=5", "--logging.metrics_every_iteration"});
  EXPECT_EQ(losses("each", 12), losses("requested", 12));
  for (const nlohmann::json& line : metrics("requested")) {
    if (line["type"] != "train") continue;
    EXPECT_GT(line["elapsed_ms"].get<double>(), 0);
    EXPECT_EQ(line["skipped_iterations"], 0);
  }
}

TEST_F(EnvironmentTest, DryRunEstimatesStepTime) {
  const std::string local_plan = run_ok(pretrain("run", {"--dry_run"}));
  EXPECT_CONTAINS(local_plan, "FLOP/s measured");
  EXPECT_CONTAINS(local_plan, "  a step                at least ");
  EXPECT_CONTAINS(local_plan, "  all ");
  EXPECT_CONTAINS(local_plan, "  device                cpu, ");
  EXPECT_EQ(run_ok(pretrain("run", {"--dry_run", "--world_size=2"})).find("a step "), std::string::npos);
}

TEST_F(EnvironmentTest, DryRunRejectsSameInputAsRun) {
  train("model", {"--training.exit_interval=2"});
  write_file_atomic(folder_ / "file", "x");
  const std::vector<Strings> cases{pretrain("none", {"--device.device=cuda"}),
                                   pretrain("none", {"--data.data_path="}),
                                   pretrain("file/run"),
                                   pretrain("model", {"--model.num_layers=1"}),
                                   pretrain("model", {"--optimizer.lr=0.5"}),
                                   pretrain("none", {"--logging.metrics_path=" + folder_.string()}),
                                   pretrain("none", {"--logging.tensorboard_dir=" + at("file/x")})};
  for (const Strings& words : cases) {
    const Outcome dry = run(plus(words, "--dry_run")), real = run(words);
    EXPECT_EQ(dry.code, 2) << words.back() << dry.out;
    EXPECT_EQ(real.code, 2) << words.back();
    EXPECT_EQ(dry.err, real.err);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "none/iter_0000002"));
  }
  run_ok(pretrain("fresh/folder", {"--dry_run"}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "fresh")) << "a dry run leaves nothing";
  EXPECT_CONTAINS(run_ok(pretrain("model", {"--dry_run"})), "would start from " + at("model/iter_0000002"));
}

TEST_F(EnvironmentTest, MemoryErrorMatchesPlan) {
  const Strings large = pretrain("run", {"--model.hidden_size=65536", "--model.num_layers=24",
                                         "--training.precision=bf16", "--training.micro_batch_size=1", "--dry_run"});
  const Outcome refused = run(large);
  EXPECT_EQ(refused.code, 12);
  EXPECT_EQ(refused.err.find("bf16"), std::string::npos) << refused.err;
  EXPECT_EQ(refused.err.find("micro_batch_size"), std::string::npos) << refused.err;
  const std::size_t begin = refused.out.find("memory: ") + 8;
  EXPECT_CONTAINS(refused.err, "it needs " + refused.out.substr(begin, refused.out.find(" estimated", begin) - begin));
}

TEST_F(EnvironmentTest, GenerateComparesCacheWithMemory) {
  train("run", {"--training.exit_interval=2"});
  const Strings limited{"sh", "-c", "ulimit -v 600000; exec \"$@\"", "sh"};
  const auto generate = [&](const char* batch) {
    return test::Program({"generate", "--load=" + at("run"), "--max_new_tokens=2", "--num_samples=100000",
                          "--prompt=To be", str("--batch_size=", batch)},
                         root() / "process", 0, limited);
  };
  const Outcome outcome = generate("100000").wait();
  EXPECT_EQ(outcome.code, 12) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "not enough memory for 100000 texts in one batch (--batch_size)");
}

TEST_F(EnvironmentTest, RefusesToLoadFolderWithoutCheckpoint) {
  std::filesystem::create_directories(folder_ / "model");
  run_ok(pretrain("run", {"--training.exit_interval=1", "--checkpoint.load=" + at("model")}));
  write_file_atomic(folder_ / "model/config.json", "{}");
  for (const Strings& more : {Strings{}, Strings{"--dry_run"}}) {
    Strings words = pretrain("new", {"--checkpoint.load=" + at("model")});
    words.insert(words.end(), more.begin(), more.end());
    const Outcome refused = run(words);
    EXPECT_EQ(refused.code, 2) << refused.out;
    EXPECT_CONTAINS(refused.err, "checkpoint.load: " + at("model") + ": contains no checkpoint, but other files");
  }
}

TEST_F(EnvironmentTest, NamesLimitWhenThreadsCannotBeStarted) {
  const Strings limited{"sh", "-c", "ulimit -v 900000; exec \"$@\"", "sh"};
  const Strings words = pretrain("run", {"--device.num_threads=4000"});
  const Outcome refused = test::Program(words, root() / "process", 0, limited).wait();
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_CONTAINS(refused.err, "ulimit -u");
}

}  // namespace
}  // namespace mcpp
