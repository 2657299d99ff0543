// Training with fill in the middle.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class FimRunTest : public EndToEnd {
 protected:
  static Strings with_fim(Strings more = {}) {
    for (const char* word : {"--data.fim_rate=0.7", "--data.fim_prefix_token=<0x01>", "--data.fim_middle_token=<0x02>",
                             "--data.fim_suffix_token=<0x03>", "--training.train_iters=6", "--optimizer.lr=3e-4"})
      more.emplace_back(word);
    return more;
  }
  std::vector<double> losses_of(const std::string& name, const Strings& more = {}, int ranks = 1) const {
    const Outcome outcome = run_on(ranks, pretrain(name, with_fim(more)));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return losses(name, 6);
  }
};

TEST_F(FimRunTest, HasSameLossesOnEveryLayout) {
  const std::vector<double> expected = losses_of("one");
  EXPECT_EQ(losses_of("on_demand", {"--data.prefetch_batches=0"}), expected);
  const std::pair<const char*, Strings> layouts[]{
      {"dp", {}},
      {"tp", {"--parallel.tensor_model_parallel_size=2"}},
      {"cp", {"--parallel.context_parallel_size=2", "--data.reset_attention_mask=true"}},
      {"pp", {"--parallel.pipeline_model_parallel_size=2", "--training.micro_batch_size=1"}}};
  for (const auto& [name, layout] : layouts) {
    SCOPED_TRACE(name);
    const bool has_masks = name == std::string_view("cp");
    const std::vector<double> reference =
        has_masks ? losses_of("masked", {"--data.reset_attention_mask=true"}) : expected;
    const std::vector<double> found = losses_of(name, layout, 2);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / reference[i], 1, 1e-5) << i;
  }
}

TEST_F(FimRunTest, ResumedRunIsBitwiseIdentical) {
  const std::vector<double> expected = losses_of("whole");
  train("resumed", with_fim({"--training.exit_interval=3"}));
  train("resumed", with_fim());
  EXPECT_EQ(losses("resumed", 6), expected);
  expect_same_checkpoint("whole", "resumed");
  const Outcome changed = run(pretrain("resumed", with_fim({"--data.fim_no_prefix=x"})));
  EXPECT_EQ(changed.code, 2);
  EXPECT_CONTAINS(changed.err, "data.fim_no_prefix: \"\" in the checkpoint, \"x\" now");
}

TEST_F(FimRunTest, ChangesTrainingButNotEvaluation) {
  train("plain", {"--training.train_iters=6", "--optimizer.lr=3e-4", "--training.eval_on_start"});
  train("fim", with_fim({"--training.eval_on_start"}));
  const auto at_start = [&](const std::string& name) { return records(name, "validation").front()["lm_loss"]; };
  EXPECT_EQ(at_start("fim"), at_start("plain"));
  EXPECT_NE(losses("fim", 6).front(), losses("plain", 6).front());
}

TEST_F(FimRunTest, ReportsTokenizerWithoutMarks) {
  const Outcome outcome = run(pretrain("x", {"--data.fim_rate=0.5", "--dry_run"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "data.fim_prefix_token: ");
  EXPECT_CONTAINS(outcome.err, "has no token \"<fim_prefix>\"");
  const Outcome mock = run(pretrain("x", with_fim({"--data.mock_data", "--data.data_path="})));
  EXPECT_EQ(mock.code, 2);
  EXPECT_CONTAINS(mock.err, "cannot be combined with mock_data");
  const Outcome unused = run(pretrain("x", {"--data.fim_prefix_token=<0x01>"}));
  EXPECT_EQ(unused.code, 2);
  EXPECT_CONTAINS(unused.err, "data.fim_prefix_token");
}

TEST_F(FimRunTest, DataShowPrintsMarks) {
  Strings args{"data", "show", (root() / "run.toml").string(), "--iteration=1", "--checkpoint.save=" + at("x")};
  for (const std::string& word : with_fim()) args.push_back(word);
  EXPECT_CONTAINS(run_ok(args), std::string("\x03"));
}

}  // namespace
}  // namespace mcpp
