// Steps with a spike or a non-finite value: the layers and the text that the log names, and repeated executions that
// distinguish bad data from faults of the hardware.
#include <regex>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class SpikeCausesLogTest : public EndToEndOnRanks {
 protected:
  static Strings fault(const std::string& kind, i64 iteration, const Strings& more = {}) {
    Strings words{"--fault_injection.kind=" + kind, str("--fault_injection.iteration=", iteration)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the texts of the events of a kind, with their iterations.
  std::vector<std::pair<i64, std::string>> events(const std::string& save, const std::string& kind) const {
    std::vector<std::pair<i64, std::string>> texts;
    for (const nlohmann::json& line : records(save, "event"))
      if (line["event"] == kind) texts.emplace_back(line["iteration"], line["text"]);
    return texts;
  }
};

TEST_F(SpikeCausesLogTest, SpikeIsAttributedToLayersAndText) {
  const Strings spike = fault("spike", 10, {"--training.spike_window=4", "--training.spike_z_score=100"});
  const Outcome outcome = run(pretrain("run", spike));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto causes = events("run", "cause");
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_EQ(causes[0].first, 10);
  EXPECT_CONTAINS(outcome.err, causes[0].second);
  EXPECT_CONTAINS(causes[0].second, "iteration 10: gradient norms that rose most: ");
  EXPECT_CONTAINS(causes[0].second, " times its usual ");
  // The eight samples of the batch, the largest loss first, with the documents that `data show` finds.
  const std::regex pattern(
      "\n  sample (\\d+), loss ([0-9.]+): (\\S+), documents? (\\d+) \\(tokens (\\d+) to (\\d+)\\)");
  std::vector<double> losses;
  const std::string& text = causes[0].second;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), pattern); it != std::sregex_iterator(); ++it) {
    const std::smatch& match = *it;
    EXPECT_GE(std::stoi(match[1]), 72);
    EXPECT_LT(std::stoi(match[1]), 80);
    losses.push_back(std::stod(match[2]));
    EXPECT_EQ(match[3], dataset());
    const std::string shown = run_ok({"data", "show", (root() / "run.toml").string(), "--checkpoint.save=" + at("run"),
                                      str("--sample=", match[1].str())});
    EXPECT_CONTAINS(shown, str("document ", match[4].str(), ", tokens ", match[5].str(), " to ", match[6].str(), "\n"));
  }
  EXPECT_EQ(losses.size(), 8U) << text;
  EXPECT_TRUE(std::ranges::is_sorted(losses, std::greater()));
  EXPECT_CONTAINS(text, ": \"");

  train("off", [&] {
    Strings words = spike;
    words.push_back("--training.attribute_spikes=false");
    return words;
  }());
  EXPECT_TRUE(events("off", "cause").empty());
  expect_same_checkpoint("run", "off");
}

TEST_F(SpikeCausesLogTest, NonFiniteGradientIsAttributedToLayers) {
  train("run", fault("nan_grad", 6));
  const auto causes = events("run", "cause");
  ASSERT_EQ(causes.size(), 1U);
  EXPECT_CONTAINS(causes[0].second, "the gradient is not finite in ");
}

TEST_F(SpikeCausesLogTest, RepeatedStepDistinguishesDataFromFaults) {
  const Strings rerun{"--training.rerun_spikes"};
  // A gradient that is not finite in every execution.
  train("data", plus(fault("nan_local_grad", 6), rerun[0]));
  ASSERT_EQ(events("data", "rerun").size(), 1U);
  EXPECT_CONTAINS(events("data", "rerun")[0].second, "iteration 6: repeated executions have the same loss");
  // One that is not finite only after the passes, in the first execution.
  train("fault", plus(fault("nan_grad", 6), rerun[0]));
  ASSERT_EQ(events("fault", "rerun").size(), 1U);
  EXPECT_CONTAINS(events("fault", "rerun")[0].second, "a transient fault of an unknown rank");
  // The step after the repeated one is not affected.
  train("without", fault("nan_grad", 6));
  expect_same_checkpoint("fault", "without");
}

TEST_F(SpikeCausesLogTest, ComparedStepsNameFaultyRank) {
  const Strings layout{"--parallel.tensor_model_parallel_size=2", "--training.rerun_interval=3"};
  const auto with = [&](const Strings& more) {
    Strings words = layout;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  train_on(2, "plain", {"--parallel.tensor_model_parallel_size=2"});
  train_on(2, "compared", layout);
  expect_same_checkpoint("plain", "compared");
  EXPECT_TRUE(events("compared", "rerun").empty());

  train_on(2, "transient", with(fault("bit_flip", 6, {"--fault_injection.rank=1"})));
  ASSERT_EQ(events("transient", "rerun").size(), 1U);
  EXPECT_EQ(events("transient", "rerun")[0].first, 6);
  EXPECT_CONTAINS(events("transient", "rerun")[0].second, "two executions of the step differ on rank 1 on ");
  expect_same_checkpoint("plain", "transient");

  const Strings persistent = fault("bit_flip", 6, {"--fault_injection.rank=1", "--fault_injection.executions=0"});
  const Outcome outcome = run_on(2, pretrain("persistent", with(persistent)));
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "iteration 6: every execution of the step has a different result on rank 1 on ");
  // Without the fault, the same command continues from the checkpoint of iteration 4.
  train_on(2, "persistent", layout);
  expect_same_checkpoint("plain", "persistent");
}

TEST_F(SpikeCausesLogTest, RejectsBadInput) {
  for (const auto& [word, message] : std::vector<std::pair<std::string, std::string>>{
           {"--training.rerun_interval=-1", "training.rerun_interval"},
           {"--training.rerun_spikes=maybe", "training.rerun_spikes"},
           {"--fault_injection.executions=2", "only read when kind is \"bit_flip\""}}) {
    const Outcome outcome = run(pretrain("bad", {word}));
    EXPECT_EQ(outcome.code, 2) << word;
    EXPECT_CONTAINS(outcome.err, message);
  }
}

}  // namespace
}  // namespace mcpp
