// Parameter groups, the maximal update parametrization and the z-loss with the real program: logs, resume on another
// layout, changed and invalid settings, export, and the coordinate check.
#include <cmath>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

constexpr const char* kGroups =
    R"(--optimizer.param_group=[{match = "embedding.*", lr_mult = 0.5, wd_mult = 0}, {match = "*.bias", adam_eps = 1e-6}])";

class TuningEndToEndTest : public EndToEnd {
 protected:
  static Strings tuned(const Strings& more = {}) {
    Strings words{kGroups, "--model.use_mup", "--model.mup_base_hidden_size=8", "--model.output_z_loss_coeff=1e-3"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<double> z_losses(const std::string& run) const {
    std::vector<double> found;
    for (const nlohmann::json& line : records(run, "train"))
      if (line.contains("output_z_loss")) found.push_back(line["output_z_loss"]);
    return found;
  }
};

TEST_F(TuningEndToEndTest, LogsGroupsFactorsAndZLoss) {
  const std::string text = run_ok(pretrain("run", tuned()));
  EXPECT_CONTAINS(text, "  embedding.*: 2 tensors, ");
  EXPECT_CONTAINS(text, "learning rate x 0.5, weight decay x 0");
  EXPECT_CONTAINS(text, "maximal update parametrization: width x 4.000");
  EXPECT_CONTAINS(text, "hidden matrices: learning rate x 0.2500, initial values x 0.5000");
  EXPECT_CONTAINS(text, "| output z loss: ");
  const std::vector<double> losses = z_losses("run");
  ASSERT_EQ(losses.size(), 12U);
  // Before the first update all logits are close to 0, so that log(sum(exp(logits))) is that of the vocabulary of 400.
  EXPECT_NEAR(losses[0], 1e-3 * std::pow(std::log(400.0), 2), 1e-3);
  train("without");
  EXPECT_TRUE(z_losses("without").empty());
}

TEST_F(TuningEndToEndTest, ResumesOnAnotherLayout) {
  train("all", tuned());
  train("parts", tuned({"--training.exit_interval=8"}));
  train("parts", tuned({"--optimizer.offload=host", "--training.recompute_granularity=full"}));
  expect_same_checkpoint("all", "parts");
  const Outcome outcome = run_on(4, pretrain("layout", tuned({"--parallel.tensor_model_parallel_size=2",
                                                              "--parallel.pipeline_model_parallel_size=2"})));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const std::vector<double> expected = z_losses("all"), losses = z_losses("layout");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, 1e-4);
}

TEST_F(TuningEndToEndTest, ReportsChangedGroups) {
  train("run", tuned({"--training.exit_interval=4"}));
  const Strings changed = tuned({R"(--optimizer.param_group=[{match = "embedding.*", lr_mult = 0.25}])"});
  Strings words(changed.begin() + 1, changed.end());
  const Outcome outcome = run(pretrain("run", words));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "optimizer.param_group: [{match = \"embedding.*\", lr_mult = 0.5, wd_mult = 0.0}, ");
  EXPECT_CONTAINS(outcome.err, "[{match = \"embedding.*\", lr_mult = 0.25}] now");
  words.emplace_back("--checkpoint.allow_changed_keys=optimizer.param_group");
  train("run", words);
}

TEST_F(TuningEndToEndTest, RejectsInvalidSettings) {
  const auto error = [&](const Strings& options) {
    const Outcome outcome = run(pretrain("run", options));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_CONTAINS(
      error({R"(--optimizer.param_group=[{match = "embeding.word_embeddings.weight"}])"}),
      "no tensor matches \"embeding.word_embeddings.weight\"; did you mean embedding.word_embeddings.weight?");
  EXPECT_CONTAINS(error({"--model.use_mup", "--optimizer.optimizer=sgd"}),
                  "--model.use_mup: requires optimizer.optimizer");
  EXPECT_CONTAINS(error({"--model.mup_base_hidden_size=16"}), "only read when use_mup is true");
  EXPECT_CONTAINS(error({"--model.output_z_loss_coeff=1"}), "must be at least 0 and at most 0.01");
}

TEST_F(TuningEndToEndTest, ExportNamesWhatHuggingFaceLacks) {
  train("run", tuned());
  const Outcome outcome = run({"checkpoint", "export-hf", at("run"), at("exported")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "model.use_mup");
}

TEST_F(TuningEndToEndTest, CoordinateCheckDrawsChart) {
  const std::string text =
      run_ok({"bench", "coordinate_check", (root() / "run.toml").string(), "--model.use_mup",
              "--checkpoint.save_interval=0", "--steps=2", "--seeds=1", str("--svg=", at("check.svg"))});
  EXPECT_CONTAINS(text, "maximal update parametrization, 2 steps at learning rate 0.01");
  EXPECT_CONTAINS(text, "        32        64       128  exponent");
  EXPECT_CONTAINS(read_text_file(folder_ / "check.svg"), "<svg ");
}

}  // namespace
}  // namespace mcpp
