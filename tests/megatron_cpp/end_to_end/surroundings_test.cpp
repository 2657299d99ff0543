// What can happen to a training from outside: files that change under it, closed outputs, removed folders, odd
// settings.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class Surroundings : public EndToEnd {
 protected:
  /// A training that goes on for long, without evaluations and saves.
  Words endless(const std::string& save, const Words& more = {}) const {
    Words args = pretrain(save, {"--training.train_iters=1000000", "--training.eval_interval=0",
                                 "--training.eval_iters=0", "--checkpoint.save_interval=0"});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  /// The training under `launcher`, which changes its surroundings and then runs "$@".
  Outcome run_in_shell(const std::string& save, const std::string& script) const {
    return test::Program(pretrain(save), root() / "shell", 0, {"sh", "-c", script, "sh"}).wait();
  }
};

TEST_F(Surroundings, ATokenFileThatShrinksIsNamed) {
  for (const char* end : {".bin", ".idx"}) std::filesystem::copy_file(dataset() + end, at("text") + end);
  test::Program program(endless("run", {str("--data.data_path=[\"", at("text"), "\"]"), "--data.prefetch_batches=0"}),
                        root() / "shrinking");
  wait_for_lines("run", 3);
  std::filesystem::resize_file(at("text") + ".bin", 0);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_CONTAINS(outcome.err, at("text") + ".bin");
  EXPECT_CONTAINS(outcome.err, "became shorter");
}

TEST_F(Surroundings, OutputsThatNobodyReadsDoNotEndATraining) {
  train("whole");
  EXPECT_EQ(run_in_shell("closed", "exec \"$@\" >&- 2>&-").code, 0);
  expect_same_checkpoint("whole", "closed");
  EXPECT_EQ(run_in_shell("pipe", "(\"$@\"; echo $? >&2) | true").err, "0\n");
  expect_same_checkpoint("whole", "pipe");
  EXPECT_EQ(run_in_shell("full", "exec \"$@\" >/dev/full").code, 0);
  expect_same_checkpoint("whole", "full");
}

/// Of a command that prints what it makes half would be taken for all.
TEST_F(Surroundings, WhatACommandPrintsIsThereOrItFails) {
  const auto outcome = [&](const std::string& script) {
    return test::Program({"config", "--help"}, root() / "shell", 0, {"sh", "-c", script, "sh"}).wait();
  };
  const Outcome full = outcome("exec \"$@\" >/dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_CONTAINS(full.err, "standard output: not all could be written");
  EXPECT_EQ(outcome("exec \"$@\" >&-").code, 0);
  EXPECT_EQ(outcome("(\"$@\"; echo $? >&2) | head -n 1 >/dev/null").err, "0\n");
}

TEST_F(Surroundings, LocaleAndTimeZoneChangeNothing) {
  train("whole");
  EXPECT_EQ(run_in_shell("german", "LC_ALL=de_DE.UTF-8 LANG=de_DE.UTF-8 TZ=Pacific/Apia exec \"$@\"").code, 0);
  expect_same_checkpoint("whole", "german");
  EXPECT_EQ(losses("whole", 12), losses("german", 12));
}

TEST_F(Surroundings, FewFileDescriptorsSuffice) {
  const Outcome outcome = run_in_shell("few", "ulimit -n 32; exec \"$@\"");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(Surroundings, AMetricsFolderThatGoesAwayDoesNotEndATraining) {
  std::filesystem::create_directories(at("metrics"));
  const std::string metrics = str("--logging.metrics_path=", at("metrics/metrics.jsonl"));
  test::Program program(endless("run", {metrics}), root() / "metrics_program");
  wait_for_lines("metrics", 3);
  std::filesystem::remove_all(at("metrics"));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  program.signal(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 85) << outcome.err;
  EXPECT_CONTAINS(good({"checkpoint", "verify", at("run")}), "sound");
}

/// A limit of a batch system counts from the start of the process, with all that it did before the first step.
TEST_F(Surroundings, TheDurationCountsFromTheStartOfTheProcess) {
  const Words args = endless("run", {"--training.exit_duration_in_mins=0.05"});
  const Outcome outcome = test::Program(args, root() / "shell", 0, {"sh", "-c", "sleep 4; exec \"$@\"", "sh"}).wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "training.exit_duration_in_mins is over");
  EXPECT_LE(metrics("run").size(), 3u) << outcome.out;
}

TEST_F(Surroundings, MetricsOfEveryIterationOnRequest) {
  train("each");
  train("requested", {"--logging.log_interval=5", "--logging.metrics_every_iteration"});
  EXPECT_EQ(losses("each", 12), losses("requested", 12));
  for (const nlohmann::json& line : metrics("requested")) {
    if (line["type"] != "train") continue;
    EXPECT_GT(line["elapsed_ms"].get<double>(), 0);
    EXPECT_EQ(line["skipped_iterations"], 0);
  }
}

TEST_F(Surroundings, ADryRunSaysWhatAStepTakesHere) {
  const std::string here = good(pretrain("run", {"--dry_run"}));
  EXPECT_CONTAINS(here, "FLOP/s measured");
  EXPECT_CONTAINS(here, "  a step                at least ");
  EXPECT_EQ(good(pretrain("run", {"--dry_run", "--world_size=2"})).find("a step "), std::string::npos);
}

}  // namespace
}  // namespace mcpp
