// Event files of the real program compared with its metrics: complete, killed, resumed, and on a full disk.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/readers/event_reader.h"

namespace mcpp {
namespace {

class TensorboardEndToEndTest : public EndToEnd {
 protected:
  std::string dir(const std::string& name = "tb") const { return "--logging.tensorboard_dir=" + at(name); }

  /// Expects that the events contain each training step once, with the values of its metrics.
  void expect_curves_of(const std::string& save, const test::Events& events) const {
    std::vector<std::pair<i64, float>> losses, by_samples, rates, validation, test_losses;
    for (const nlohmann::json& line : metrics(save)) {
      const i64 iteration = line["iteration"];
      const float loss = line["lm_loss"];
      if (line["type"] == "validation") validation.emplace_back(iteration, loss);
      if (line["type"] == "test") test_losses.emplace_back(iteration, loss);
      if (line["type"] != "train") continue;
      losses.emplace_back(iteration, loss);
      by_samples.emplace_back(line["consumed_samples"], loss);
      rates.emplace_back(iteration, line["learning_rate"]);
    }
    EXPECT_EQ(losses.size(), 12u);
    EXPECT_EQ(events.scalars.at("lm loss"), losses);
    EXPECT_EQ(events.scalars.at("lm loss vs samples"), by_samples);
    EXPECT_EQ(events.scalars.at("learning-rate"), rates);
    EXPECT_EQ(events.scalars.at("lm loss validation"), validation);
    EXPECT_EQ(events.scalars.at("lm loss test"), test_losses);
    for (const char* tag : {"grad-norm", "loss-scale", "batch-size", "throughput", "iteration-time", "mfu",
                            "mem-allocated-bytes", "mem-max-allocated-bytes"})
      EXPECT_EQ(events.steps(tag).size(), 12u) << tag;
    EXPECT_EQ(events.unread, 0u);
  }
};

TEST_F(TensorboardEndToEndTest, MatchesMetricsAndConfiguration) {
  train("run", {dir()});
  const test::Events events = test::read_events(folder_ / "tb");
  expect_curves_of("run", events);
  EXPECT_CONTAINS(events.texts.at("configuration").at(0).second, "hidden_size = 32");
  EXPECT_EQ(events.scalars.at("lm loss validation ppl vs samples").size(), 3u);
}

TEST_F(TensorboardEndToEndTest, HasEachStepOnceAfterKillAndResume) {
  const Outcome killed = run(pretrain("run", {dir(), "--fault_injection.kind=kill", "--fault_injection.iteration=8"}));
  EXPECT_EQ(killed.code, -SIGKILL) << killed.err;
  EXPECT_GE(test::read_events(folder_ / "tb").steps("lm loss").back(), 6);  // after the checkpoint of iteration 4
  train("run", {dir()});
  expect_curves_of("run", test::read_events(folder_ / "tb"));
  train("run", {dir()});  // the run is already complete
  expect_curves_of("run", test::read_events(folder_ / "tb"));
}

TEST_F(TensorboardEndToEndTest, FollowsLogInterval) {
  train("run", {dir(), "--logging.tensorboard_log_interval=5"});
  EXPECT_EQ(test::read_events(folder_ / "tb").steps("lm loss"), (std::vector<i64>{5, 10}));
}

TEST_F(TensorboardEndToEndTest, TrainingContinuesWhenDiskIsFull) {
  train("run");  // makes the sample index
  const Outcome outcome = run({"pretrain", (root() / "run.toml").string(), "--checkpoint.save=", dir()}, 8192);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "events for TensorBoard are being lost: ");
  EXPECT_EQ(test::read_events(folder_ / "tb").unread, 0u);
}

TEST_F(TensorboardEndToEndTest, RejectsUnusableFolderBeforeTraining) {
  write_file_atomic(folder_ / "file", "");
  const Outcome outcome = run(pretrain("run", {dir("file")}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "logging.tensorboard_dir: " + at("file") + " is a file");
  EXPECT_EQ(outcome.out.find("iteration        1/"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace mcpp
