// Training on prompts with completions, of which only the completions have a loss.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class LossMaskRunTest : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    std::string lines;
    const std::vector<std::string> text = split(read_text_file(root() / "train.txt"), '\n');
    for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
      // Every third prompt is longer than a sample, so that some samples have no target.
      const std::string prompt = i % 3 == 0 ? text[i] + " " + text[i] + " " + text[i] : text[i];
      lines += nlohmann::json{{"prompt", prompt + "\n"}, {"completion", text[i + 1]}}.dump() + "\n";
    }
    write_file_atomic(at("pairs.jsonl"), lines);
    run_ok({"preprocess", at("pairs.jsonl"), "--json_content=prompt_completion", "--output_prefix=" + at("pairs"),
            "--tokenizer_model=" + (root() / "tokenizer.model").string()});
  }
  std::string pairs() const { return at("pairs_completion_document"); }
  Strings on_pairs(Strings more = {}) const {
    for (const std::string& word : {"--data.data_path=" + pairs(), std::string("--training.train_iters=6"),
                                    std::string("--optimizer.lr=3e-4"), std::string("--data.reset_attention_mask=true"),
                                    std::string("--data.reset_position_ids=true"), std::string("--model.num_layers=4")})
      more.push_back(word);
    return more;
  }
  std::vector<double> losses_of(const std::string& name, const Strings& more = {}, int ranks = 1) const {
    const Outcome outcome = run_on(ranks, pretrain(name, on_pairs(more)));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return losses(name, 6);
  }
};

TEST_F(LossMaskRunTest, HasSameLossesOnEveryLayout) {
  const std::vector<double> expected = losses_of("one");
  for (const double loss : expected) EXPECT_GT(loss, 1);
  const std::pair<const char*, Strings> layouts[]{
      {"microbatches", {"--training.micro_batch_size=1"}},
      {"dp", {"--training.micro_batch_size=1"}},
      {"zero", {"--parallel.zero_stage=3"}},
      {"tp", {"--parallel.tensor_model_parallel_size=2", "--parallel.sequence_parallel=true"}},
      {"cp", {"--parallel.context_parallel_size=2"}},
      {"pp", {"--parallel.pipeline_model_parallel_size=2", "--training.micro_batch_size=1"}}};
  for (const auto& [name, layout] : layouts) {
    SCOPED_TRACE(name);
    const std::vector<double> found = losses_of(name, layout, name == std::string_view("microbatches") ? 1 : 2);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1, 1e-5) << i;
  }
}

TEST_F(LossMaskRunTest, ResumedRunIsBitwiseIdentical) {
  const std::vector<double> expected = losses_of("whole");
  train("resumed", on_pairs({"--training.exit_interval=3"}));
  train("resumed", on_pairs());
  EXPECT_EQ(losses("resumed", 6), expected);
  expect_same_checkpoint("whole", "resumed");
}

TEST_F(LossMaskRunTest, RejectsChangedMaskOnResume) {
  train("run", on_pairs({"--training.exit_interval=3"}));
  const Path mask = pairs() + "_loss_mask.bin", info = pairs() + ".json";
  const std::string bytes = read_text_file(mask), text = read_text_file(info);
  std::string changed = bytes;
  for (std::size_t i = 0; i < changed.size(); i += 2) changed[i] = '\1';
  write_file_atomic(mask, changed);
  const Outcome with_changed_mask = run(pretrain("run", on_pairs()));
  EXPECT_EQ(with_changed_mask.code, 2) << with_changed_mask.out;
  EXPECT_CONTAINS(with_changed_mask.err, "data.data_path: " + pairs());
  write_file_atomic(mask, bytes);
  nlohmann::json without = nlohmann::json::parse(text);
  without.erase("targets");
  write_file_atomic(info, without.dump());
  const Outcome without_mask = run(pretrain("run", on_pairs()));
  EXPECT_EQ(without_mask.code, 2) << without_mask.out;
  EXPECT_CONTAINS(without_mask.err, "loss mask");
}

TEST_F(LossMaskRunTest, RejectsMaskWithoutMetadata) {
  const Path info = pairs() + ".json";
  nlohmann::json damaged = nlohmann::json::parse(read_text_file(info));
  damaged["targets"] = -5;
  write_file_atomic(info, damaged.dump());
  EXPECT_CONTAINS(run(pretrain("run", on_pairs())).err, "targets: must be at least 0");
  std::filesystem::remove(info);
  const Outcome outcome = run(pretrain("run", on_pairs()));
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_CONTAINS(outcome.err, "_completion_document.json: is missing, but ");
}

TEST_F(LossMaskRunTest, EvaluationScoresCompletionsOnly) {
  train("run", on_pairs());
  const nlohmann::json info = nlohmann::json::parse(read_text_file(pairs() + ".json"));
  const auto result = nlohmann::json::parse(run_ok({"evaluate", "--load=" + at("run"), "--data=" + pairs(), "--json"}));
  EXPECT_EQ(result["tokens"], info["targets"]);
  EXPECT_LT(info["targets"].get<i64>(), info["tokens"].get<i64>() / 2);
  EXPECT_FALSE(result.contains("bits_per_byte")) << "the size of the completions is unknown";
  const Outcome two = run_on(2, {"evaluate", "--load=" + at("run"), "--data=" + pairs(), "--json"});
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_NEAR(nlohmann::json::parse(two.out)["nll"].get<double>() / result["nll"].get<double>(), 1, 1e-6);
}

TEST_F(LossMaskRunTest, MixesWithPlainText) {
  const Strings mixed = on_pairs({"--data.data_path=0.5," + pairs() + ",0.5," + dataset()});
  Strings args = mixed;
  std::erase(args, "--data.data_path=" + pairs());
  train("mixed", args);
  for (const double loss : losses("mixed", 6)) EXPECT_TRUE(std::isfinite(loss));
  const std::string shown = run_ok({"data", "show", (root() / "run.toml").string(), "--data.data_path=" + pairs(),
                                    "--sample=0", "--checkpoint.save=" + at("x")});
  EXPECT_CONTAINS(shown, " of 33 tokens have a loss");
  EXPECT_CONTAINS(run_ok({"data", "verify", pairs()}), "loss mask: ");
}

TEST_F(LossMaskRunTest, TrainingContinuesAfterBatchWithoutTargets) {
  // The prompts are hundreds of samples long, so most batches of this run have no target at all.
  const std::string text = read_text_file(root() / "train.txt").substr(0, 40'000);
  write_file_atomic(at("long.jsonl"), nlohmann::json{{"prompt", text}, {"completion", "The end."}}.dump() + "\n");
  run_ok({"preprocess", at("long.jsonl"), "--json_content=prompt_completion", "--output_prefix=" + at("long"),
          "--tokenizer_model=" + (root() / "tokenizer.model").string()});
  Strings args =
      on_pairs({"--data.data_path=" + at("long_completion_document"), "--data.split=1,0,0", "--training.eval_iters=0"});
  std::erase(args, "--data.data_path=" + pairs());
  train("long", args);
  const std::vector<double> found = losses("long", 6);
  EXPECT_GT(std::ranges::count(found, 0), 3);
  run_ok({"checkpoint", "verify", at("long")});
}

}  // namespace
}  // namespace mcpp
