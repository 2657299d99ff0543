// Multi-token prediction with the real program: logged losses, resume on another layout, evaluation and generation.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class MtpEndToEndTest : public EndToEnd {
 protected:
  static Strings with_mtp(const Strings& more = {}) {
    Strings words{"--model.position_embedding_type=rope", "--model.mtp_num_layers=2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::vector<double>> mtp_losses(const std::string& run) const {
    std::vector<std::vector<double>> losses;
    for (const nlohmann::json& line : metrics(run))
      if (line.contains("mtp_losses")) losses.push_back(line["mtp_losses"].get<std::vector<double>>());
    return losses;
  }
};

TEST_F(MtpEndToEndTest, LogsSameLossesOnEveryLayout) {
  EXPECT_CONTAINS(run_ok(pretrain("run", with_mtp())), "| mtp_2 loss: ");
  const auto expected = mtp_losses("run");
  ASSERT_FALSE(expected.empty());
  const Outcome outcome = run_on(
      4, pretrain("layout",
                  with_mtp({"--parallel.tensor_model_parallel_size=2", "--parallel.pipeline_model_parallel_size=2",
                            "--parallel.pipeline_model_parallel_layout=Ett|mmL"})));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto losses = mtp_losses("layout");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    ASSERT_EQ(losses[step].size(), 2u);
    for (std::size_t k = 0; k < 2; ++k) EXPECT_NEAR(losses[step][k] / expected[step][k], 1, 1e-5);
  }
}

TEST_F(MtpEndToEndTest, EvaluationAndGenerationDoNotUseMtp) {
  train("run", with_mtp());
  EXPECT_CONTAINS(run_ok({"evaluate", str("--load=", at("run")), str("--text=", (root() / "held_out.txt").string())}),
                  "loss per token");
  run_ok({"generate", str("--load=", at("run")), "--prompt=ROMEO:", "--max_new_tokens=5"});
}

TEST_F(MtpEndToEndTest, ExportsModelWithoutMtp) {
  train("run",
        with_mtp({"--model.add_bias_linear=false", "--model.normalization=RMSNorm", "--model.activation_func=swiglu"}));
  run_ok({"checkpoint", "export-hf", at("run"), at("exported")});
  run_ok({"checkpoint", "import-hf", at("exported"), str("--save=", at("imported"))});
  const auto perplexity = [&](const std::string& name) {
    return run_ok({"evaluate", str("--load=", at(name)), str("--text=", (root() / "held_out.txt").string()), "--json"});
  };
  const auto nll = [](const std::string& out) {
    return nlohmann::json::parse(out.substr(out.find('{')))["nll"].get<double>();
  };
  EXPECT_NEAR(nll(perplexity("imported")) / nll(perplexity("run")), 1, 1e-9);
}

TEST_F(MtpEndToEndTest, RejectsResumeWithoutMtp) {
  train("run", with_mtp());
  const Outcome outcome = run(pretrain("run", {"--model.position_embedding_type=rope"}));
  EXPECT_NE(outcome.code, 0);
  EXPECT_CONTAINS(outcome.err, "model.mtp_num_layers");
}

TEST_F(MtpEndToEndTest, RejectsStagesWithoutMtp) {
  const Outcome outcome =
      run(pretrain("run", with_mtp({"--dry_run", "--world_size=2", "--parallel.pipeline_model_parallel_size=2",
                                    "--parallel.pipeline_model_parallel_layout=Et|tL"})));
  EXPECT_NE(outcome.code, 0);
  EXPECT_CONTAINS(outcome.err, "it has 0 layers of multi-token prediction (m), but mtp_num_layers = 2");
}

}  // namespace
}  // namespace mcpp
