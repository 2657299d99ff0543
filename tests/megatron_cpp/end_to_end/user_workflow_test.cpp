// Typical user workflows, and settings that must not change results.
#include <cmath>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class UserWorkflowTest : public EndToEnd {
 protected:
  Strings evaluate(const std::string& load, const Strings& more) const {
    Strings args{"evaluate", str("--load=", at(load)), "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  double nll(const std::string& load, const Strings& more = {}) const {
    Strings args = evaluate(load, {str("--text=", (root() / "held_out.txt").string())});
    args.insert(args.end(), more.begin(), more.end());
    return nlohmann::json::parse(run_ok(args))["nll"];
  }
};

TEST_F(UserWorkflowTest, TrainsEvaluatesAndGeneratesFromText) {
  EXPECT_CONTAINS(run_ok({"data", "verify", dataset()}), "documents");
  EXPECT_CONTAINS(run_ok({"data", "show", (root() / "run.toml").string(), "--checkpoint.save=x", "--iteration=2"}),
                  "document");
  const std::string text = run_ok(pretrain("run"));
  EXPECT_CONTAINS(text, "validation loss at iteration 12");
  const std::vector<double> loss = losses("run", 12);
  EXPECT_NEAR(loss[0], std::log(400), 0.2);
  EXPECT_LT(loss[11], loss[0] - 0.5);

  EXPECT_CONTAINS(run_ok({"checkpoint", "ls", at("run")}), "complete (latest)");
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("run")}), "model/embedding.word_embeddings.weight");
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "intact");
  const Outcome different = run({"checkpoint", "diff", at("run/iter_0000008"), at("run")});
  EXPECT_EQ(different.code, 1) << different.err;
  EXPECT_CONTAINS(different.out, "iteration: 8 and 12");

  const Strings generate{"generate", str("--load=", at("run")), "--prompt=ROMEO:", "--max_new_tokens=60", "--seed=3"};
  const std::string sample = run_ok(generate);
  EXPECT_TRUE(sample.starts_with("ROMEO:"));
  EXPECT_EQ(run_ok(generate), sample);
  Strings other = generate;
  other.back() = "--seed=4";
  EXPECT_NE(run_ok(other), sample);

  run_ok({"checkpoint", "export-hf", at("run"), at("hf")});
  run_ok({"checkpoint", "import-hf", at("hf"), str("--save=", at("imported"))});
  EXPECT_EQ(nll("imported"), nll("run"));

  const Strings finetune{str("--checkpoint.load=", at("imported")), "--checkpoint.finetune", "--optimizer.lr=1e-3",
                         "--training.seed=5"};
  train("tuned", finetune);
  EXPECT_NEAR(losses("tuned", 12)[0], loss[11], 0.5);
}

TEST_F(UserWorkflowTest, FinetunesWithConfigurationFromCheckpoint) {
  train("run", {"--model.position_embedding_type=rope", "--model.rotary_base=500"});
  const std::string model = run_ok({"checkpoint", "show", at("run"), "--toml"});
  EXPECT_CONTAINS(model, "[model]\nnum_layers = 2\n");
  EXPECT_EQ(model.find("[training]"), std::string::npos);
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("run"), "--toml", "--all"}), "\n[training]\n");
  write_file_atomic(at("tuned.toml"), model);
  const Strings tune{"pretrain",
                     at("tuned.toml"),
                     str("--data.data_path=", dataset()),
                     str("--data.tokenizer_model=", (root() / "tokenizer.model").string()),
                     "--training.train_iters=1",
                     str("--checkpoint.load=", at("run")),
                     "--checkpoint.finetune"};
  EXPECT_CONTAINS(run_ok(tune), "starting from the weights of " + at("run"));
  // A different tokenizer would decode the same ids to other words.
  make_tokenizer(at("other.model"), 399);
  Strings other = tune;
  other[3] = "--data.tokenizer_model=" + at("other.model");
  EXPECT_CONTAINS(run(other).err, "a different tokenizer");
  // This also holds for a dataset made with a different tokenizer, whose .json file then is the only sign of it.
  run_ok({"preprocess", str("--input=", (root() / "train.txt").string()), "--output_prefix=" + at("other"),
          "--tokenizer_model=" + at("other.model"), "--text_document=paragraph"});
  other.erase(other.begin() + 3);
  EXPECT_CONTAINS(run_ok(other), "starting from the weights of");
  other[2] = "--data.data_path=" + at("other_text_document");
  EXPECT_CONTAINS(run(other).err, "a different tokenizer than that of " + at("other_text_document.json"));
  EXPECT_CONTAINS(run_ok(plus(other, "--checkpoint.allow_changed_keys=data.tokenizer_model")), "accepted: ");
}

TEST_F(UserWorkflowTest, RefusesToConvertCheckpointWithDifferentTokenizer) {
  train("run");
  const Strings upcycle{"checkpoint", "upcycle", at("run"), at("experts"), "--num_experts=2", "--moe_layer_freq=1"};
  const Strings export_hf{"checkpoint", "export-hf", at("run"), at("hf")};
  const std::string with_own_tokenizer = "--tokenizer_model=" + (root() / "tokenizer.model").string();
  make_tokenizer(at("run/tokenizer.model"), 399);
  for (const Strings& words : {upcycle, export_hf}) {
    const Outcome refused = run(words);
    EXPECT_EQ(refused.code, 2);
    EXPECT_CONTAINS(refused.err, at("run/tokenizer.model") + ": is not the tokenizer that this model was trained with");
    EXPECT_FALSE(std::filesystem::exists(words[3])) << words[3];
    run_ok(plus(words, with_own_tokenizer));
  }
  EXPECT_TRUE(read_text_file(at("experts/tokenizer.model")) == read_text_file(root() / "tokenizer.model"));
  EXPECT_TRUE(std::filesystem::exists(at("hf/tokenizer.json")));
}

TEST_F(UserWorkflowTest, GenerateAcceptsPromptFromArgumentFileOrInput) {
  train("run");
  const Strings generate{"generate", str("--load=", at("run")), "--max_new_tokens=5", "--temperature=0"};
  const std::string text = "ROMEO: but soft, what light?";
  const std::string expected = run_ok(plus(generate, "--prompt=" + text));
  write_file_atomic(at("prompt.txt"), text);
  EXPECT_EQ(run_ok(plus(generate, "--prompt_file=" + at("prompt.txt"))), expected);
  for (const Strings& launcher :
       {Strings{}, mpirun(2)}) {  // with several ranks only the first one reads standard input
    Strings from_file{"sh", "-c", "exec \"$@\" <" + at("prompt.txt"), "sh"};
    from_file.insert(from_file.end(), launcher.begin(), launcher.end());
    Strings from_input = plus(generate, "--prompt_file=-");
    if (!launcher.empty()) from_input.emplace_back("--parallel.pipeline_model_parallel_size=2");
    const Outcome outcome = test::Program(from_input, root() / "process", 0, from_file).wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected) << launcher.size();
  }
  EXPECT_TRUE(run_ok(plus(plus(generate, "--prompt=" + text), "--prepend_eod")).starts_with(text));
  EXPECT_CONTAINS(run(plus(plus(generate, "--prompt=a"), "--prompt_file=b")).err,
                  "one of --prompt, --prompt_file and --prompts_file");
  std::string lengthy;
  for (int i = 0; i < 20; ++i) lengthy += text;
  EXPECT_CONTAINS(run(plus(generate, "--prompt=" + lengthy)).err, "but the model's context has only 32; the first ");
  EXPECT_EQ(run(plus(generate, "--prompt=" + text)).err, "");
}

TEST_F(UserWorkflowTest, WarnsWhenVocabularyIsFarAboveTokenizer) {
  const auto warning = [&](const char* size) {
    return run(pretrain("x", {"--dry_run", str("--model.vocab_size=", size)})).err;
  };
  EXPECT_CONTAINS(warning("50000"), "model.vocab_size: 50000 is far above the 400 pieces");
  EXPECT_EQ(warning("512"), "");
}

TEST_F(UserWorkflowTest, EvaluationIsIndependentOfBatchSize) {
  train("run");
  const double whole = nll("run");
  for (const char* size : {"1", "3", "64"}) {
    EXPECT_NEAR(nll("run", {str("--micro_batch_size=", size)}) / whole, 1, 1e-6);
  }
  EXPECT_LT(nll("run", {"--stride=8"}), whole) << "more context must lower the loss";
  const auto json = nlohmann::json::parse(run_ok(evaluate("run", {str("--data=", dataset())})));
  for (const char* key : {"checkpoint", "tokens", "nll", "loss", "word_perplexity", "bits_per_byte"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_NEAR(json["bytes"].get<double>(), 60'000, 2'000) << "the full text except blank lines between paragraphs";
}

using ReproducibilityTest = EndToEnd;

TEST_F(ReproducibilityTest, IsBitwiseIdenticalForAnyRunAndThreadCount) {
  for (const std::string name : {"fp32", "bf16", "fp16", "fp8"}) {
    const Strings args = in_precision(name);
    train(name, args);
    train(name + "_again", args);
    expect_same_checkpoint(name, name + "_again");
    for (const char* threads : {"2", "3"}) {
      train(name + threads, plus(args, str("--device.num_threads=", threads)));
      expect_same_checkpoint(name, name + threads);
    }
    EXPECT_EQ(losses(name, 12), losses(name + "2", 12));
  }
}

TEST_F(ReproducibilityTest, ReadsSameSamplesForAnyMicrobatchSize) {
  const auto show = [&](const char* size) {
    return run_ok({"data", "show", (root() / "run.toml").string(), "--checkpoint.save=x", "--iteration=3",
                   str("--training.micro_batch_size=", size)});
  };
  EXPECT_EQ(show("1"), show("8"));
  train("run");
  const std::vector<double> expected = losses("run", 12);
  for (const char* size : {"1", "2", "8"}) {
    const std::string name = str("micro", size);
    train(name, {str("--training.micro_batch_size=", size)});
    const std::vector<double> found = losses(name, 12);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1, 1e-4) << name << " " << i;
  }
}

TEST_F(ReproducibilityTest, IsBitwiseIdenticalWithRecomputationAndPrefetching) {
  train("run");
  train("full", {"--training.recompute_granularity=full"});
  train("selective", {"--training.recompute_granularity=selective", "--data.prefetch_batches=0"});
  expect_same_checkpoint("run", "full");
  expect_same_checkpoint("run", "selective");
}

TEST_F(ReproducibilityTest, BatchSizeFollowsSchedule) {
  train("run", {"--training.global_batch_size=0", "--training.step_batch_size_schedule=0:4 32:8",
                "--training.train_iters=0", "--training.train_samples=64", "--optimizer.lr_warmup_iters=0"});
  std::vector<i64> sizes;
  for (const nlohmann::json& line : metrics("run")) {
    if (line["type"] == "train") sizes.push_back(line["global_batch_size"]);
  }
  EXPECT_EQ(sizes, (std::vector<i64>{4, 4, 4, 4, 4, 4, 4, 4, 8, 8, 8, 8}));
}

}  // namespace
}  // namespace mcpp
