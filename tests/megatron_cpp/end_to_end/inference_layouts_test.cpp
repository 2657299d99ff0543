// Evaluation and generation with the program on several ranks: all layouts produce the same results.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class InferenceLayoutsTest : public EndToEnd {
 protected:
  static Strings layout(int tp, int pp) {
    return {str("--parallel.tensor_model_parallel_size=", tp), str("--parallel.pipeline_model_parallel_size=", pp)};
  }
  Strings evaluate(const Strings& more = {}) const {
    return joined({"evaluate", str("--load=", at("run")), str("--text=", (root() / "held_out.txt").string()),
                   "--stride=8", "--json"},
                  more);
  }
  Strings generate(const Strings& more = {}, int seed = 3, const std::string& prompt = "ROMEO:") const {
    return joined(
        {"generate", str("--load=", at("run")), "--prompt=" + prompt, "--max_new_tokens=40", str("--seed=", seed)},
        more);
  }
  /// Returns the standard output on `ranks` ranks, without the progress lines that mpirun's terminal causes.
  static std::string run_on_ranks(int ranks, const Strings& args) {
    const Outcome outcome = run_on(ranks, args);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }
  static nlohmann::json json_of(const std::string& text) { return nlohmann::json::parse(text.substr(text.find('{'))); }
};

TEST_F(InferenceLayoutsTest, PerplexityIsIndependentOfLayout) {
  train("run");
  const nlohmann::json one_rank = json_of(run_ok(evaluate()));
  // Bitwise identical if no sum is split over ranks.
  for (const auto& [ranks, keys] : {std::pair{2, layout(1, 1)}, {2, layout(1, 2)}, {4, layout(1, 2)}}) {
    const nlohmann::json all_ranks = json_of(run_on_ranks(ranks, evaluate(keys)));
    EXPECT_EQ(all_ranks["nll"], one_rank["nll"]) << ranks << " ranks";
    EXPECT_EQ(all_ranks["tokens"], one_rank["tokens"]);
    EXPECT_EQ(all_ranks["bytes"], one_rank["bytes"]);
  }
  for (const auto& [ranks, keys] : {std::pair{2, layout(2, 1)}, {4, layout(4, 1)}, {8, layout(2, 2)}}) {
    const nlohmann::json all_ranks = json_of(run_on_ranks(ranks, evaluate(keys)));
    EXPECT_NEAR(all_ranks["nll"].get<double>() / one_rank["nll"].get<double>(), 1, 1e-7) << ranks << " ranks";
    EXPECT_EQ(all_ranks["tokens"], one_rank["tokens"]);
  }
}

/// The result depends neither on the number of windows in a batch nor on the layout.
TEST_F(InferenceLayoutsTest, PerplexityIsIndependentOfBatchSize) {
  train("run");
  const auto nll = [](const std::string& text) { return json_of(text)["nll"].get<double>(); };
  for (const char* precision : {"--precision=fp32", "--precision=bf16"}) {
    SCOPED_TRACE(precision);
    const double one_rank = nll(run_ok(evaluate({precision, "--micro_batch_size=1"})));
    for (const char* batch : {"--micro_batch_size=3", "--micro_batch_size=8", "--micro_batch_size=64"})
      EXPECT_EQ(nll(run_ok(evaluate({precision, batch}))), one_rank) << batch;
    EXPECT_EQ(nll(run_on_ranks(2, evaluate(joined(layout(1, 2), {precision, "--micro_batch_size=5"})))), one_rank);
  }
  for (const Strings& keys : {layout(2, 1), Strings{"--parallel.context_parallel_size=2"}}) {
    const double alone = nll(run_on_ranks(2, evaluate(joined(keys, {"--micro_batch_size=1"}))));
    EXPECT_EQ(nll(run_on_ranks(2, evaluate(joined(keys, {"--micro_batch_size=7"})))), alone) << keys[0];
  }
}

/// Short and long texts of several files share a batch.
TEST_F(InferenceLayoutsTest, ScoresOfShortTextsAreIndependentOfBatch) {
  train("run");
  const std::string text = read_text_file(root() / "held_out.txt");
  Strings files;
  for (const std::size_t size : {3, 150, 1, 40, 700, 12, 90}) {
    const Path file = folder_ / str("text_", size, ".txt");
    write_file_atomic(file, text.substr(size, size));
    files.push_back(file.string());
  }
  const auto score = [&](const std::string& texts, const Strings& more) {
    return joined({"evaluate", "--load=" + at("run"), "--text=" + texts, "--json"}, more);
  };
  const nlohmann::json together = json_of(run_ok(score(join(files, ","), {"--by_file"})));
  const nlohmann::json on_ranks =
      json_of(run_on_ranks(2, score(join(files, ","), {"--by_file", "--micro_batch_size=2"})));
  ASSERT_EQ(together["texts"].size(), files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const nlohmann::json alone = json_of(run_ok(score(files[i], {})));
    for (const char* key : {"nll", "tokens", "bytes"}) {
      EXPECT_EQ(together["texts"][i][key], alone[key]) << files[i] << " " << key;
      EXPECT_EQ(on_ranks["texts"][i][key], alone[key]) << files[i] << " " << key;
    }
  }
}

TEST_F(InferenceLayoutsTest, NamesBatchThatDoesNotFitInMemory) {
  train("run");
  std::string text;
  while (text.size() < 60'000) text += read_text_file(root() / "held_out.txt");
  write_file_atomic(folder_ / "long.txt", text);
  const Strings limited{"sh", "-c", "ulimit -v 500000; exec \"$@\"", "sh"};
  const auto evaluate_with_little_memory = [&](const char* stride, const char* batch) {
    const Strings words{"evaluate", "--load=" + at("run"), "--text=" + at("long.txt"), stride, batch};
    return test::Program(words, root() / "process", 0, limited).wait();
  };
  const Outcome few = evaluate_with_little_memory("--stride=32", "--micro_batch_size=8");
  EXPECT_EQ(few.code, 0) << few.err;
  const Outcome all_ranks = evaluate_with_little_memory("--stride=1", "--micro_batch_size=100000");
  EXPECT_EQ(all_ranks.code, static_cast<int>(ExitCode::OutOfMemory)) << all_ranks.err;
  EXPECT_CONTAINS(all_ranks.err, "not enough memory for passes over ");
  EXPECT_CONTAINS(all_ranks.err, "--micro_batch_size");
}

/// The length of the windows depends on the text; ranks still get equal parts.
TEST_F(InferenceLayoutsTest, PerplexityIsIndependentOfContextParallelism) {
  train("run");
  const nlohmann::json one_rank = json_of(run_ok(evaluate()));
  for (const char* type : {"p2p", "all_gather", "a2a"}) {
    for (const int cp : {2, 4}) {
      const Strings keys{str("--parallel.context_parallel_size=", cp), str("--parallel.cp_comm_type=", type)};
      const nlohmann::json all_ranks = json_of(run_on_ranks(4, evaluate(keys)));
      EXPECT_NEAR(all_ranks["nll"].get<double>() / one_rank["nll"].get<double>(), 1, 1e-7) << type << ", " << cp;
      EXPECT_EQ(all_ranks["tokens"], one_rank["tokens"]);
    }
  }
}

TEST_F(InferenceLayoutsTest, GeneratedTextIsIndependentOfLayout) {
  train("run");
  const std::string one_rank = run_ok(generate());
  EXPECT_EQ(run_on_ranks(2, generate(layout(1, 2))), one_rank);
  EXPECT_EQ(run_on_ranks(2, generate(layout(2, 1))), one_rank);
  EXPECT_EQ(run_on_ranks(4, generate(layout(2, 2))), one_rank);
}

/// Each text equals the text generated without the other prompts of the batch, also beyond the end of the context.
TEST_F(InferenceLayoutsTest, GeneratedTextIsIndependentOfOtherPromptsInBatch) {
  train("run");
  const std::vector<std::string> prompts{"ROMEO:", "First Citizen:\nWe are accounted poor citizens", "O"};
  std::string file, expected;
  for (const std::string& prompt : prompts) {
    file += nlohmann::json{{"prompt", prompt}}.dump() + "\n\n";
    for (const int seed : {3, 4}) {
      const std::string text = run_ok(generate({"--ignore_eod"}, seed, prompt));
      expected += prompt + text.substr(prompt.size());
    }
  }
  write_file_atomic(root() / "prompts.jsonl", file);
  const auto shown = [&](int ranks, int batch, const Strings& more) {
    std::string texts;
    const Strings args{"generate",
                       str("--load=", at("run")),
                       "--prompts_file=" + (root() / "prompts.jsonl").string(),
                       "--max_new_tokens=40",
                       "--seed=3",
                       "--ignore_eod",
                       "--num_samples=2",
                       str("--batch_size=", batch)};
    std::istringstream lines(ranks == 1 ? run_ok(args) : run_on_ranks(ranks, joined(args, more)));
    for (std::string line; std::getline(lines, line);) {
      const auto object = nlohmann::json::parse(line);
      texts += object["prompt"].get<std::string>() + object["text"].get<std::string>() + "\n";
    }
    return texts;
  };
  EXPECT_EQ(shown(1, 1, {}), expected);
  EXPECT_EQ(shown(1, 4, {}), expected);
  EXPECT_EQ(shown(1, 8, {}), expected);
  EXPECT_EQ(shown(2, 8, layout(2, 1)), expected);
  EXPECT_EQ(shown(4, 4, layout(2, 2)), expected);
}

/// Also beyond the end of the context, for several texts in a batch, and on several ranks.
TEST_F(InferenceLayoutsTest, DraftedTokensDoNotChangeGeneratedText) {
  train("run");
  const std::string prompt = "ROMEO:\nThe day, the day, the day,\nROMEO:\nThe day, the day";
  for (const Strings& sampling : {Strings{"--temperature=0"}, Strings{"--temperature=0.7", "--num_samples=3"}}) {
    const Strings options = joined(sampling, {"--ignore_eod"});
    const std::string expected = run_ok(generate(options, 3, prompt));
    for (const char* count : {"1", "4", "50"}) {
      const Strings drafts{str("--num_speculative_tokens=", count)};
      EXPECT_EQ(run_ok(generate(joined(options, drafts), 3, prompt)), expected) << count;
    }
    const Strings drafts = joined(options, {"--num_speculative_tokens=4", "--prompt_lookup_max=1"});
    EXPECT_EQ(run_on_ranks(4, generate(joined(drafts, layout(2, 2)), 3, prompt)), expected);
  }
  const Outcome outcome = run(generate({"--temperature=0", "--num_speculative_tokens=4"}, 3, prompt));
  EXPECT_CONTAINS(outcome.err, "drafted tokens accepted");
}

TEST_F(InferenceLayoutsTest, RejectsDraftsForRecurrentLayers) {
  train("run",
        {"--model.linear_attention_freq=[2]", "--model.linear_num_key_heads=2", "--model.linear_num_value_heads=2",
         "--model.linear_key_head_dim=16", "--model.linear_value_head_dim=16"});
  const Outcome outcome = run(generate({"--num_speculative_tokens=4"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "--num_speculative_tokens must be 0 for a model with recurrent layers");
}

TEST_F(InferenceLayoutsTest, PrintsSamplesOfPromptInOrder) {
  train("run");
  const std::string one_rank = run_ok(generate()), next = run_ok(generate({}, 4));
  EXPECT_EQ(run_ok(generate({"--num_samples=2"})), one_rank + "----\n" + next);
}

TEST_F(InferenceLayoutsTest, NamesBadPromptsFile) {
  train("run");
  const auto prompts_error = [&](const std::string& content, const Strings& more = {}) {
    write_file_atomic(root() / "prompts.jsonl", content);
    const Outcome outcome = run(
        joined({"generate", str("--load=", at("run")), "--prompts_file=" + (root() / "prompts.jsonl").string()}, more));
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_CONTAINS(prompts_error("{\"prompt\": \"a\"}\n{\"text\": 1}\n"), "prompts.jsonl:2: has no key \"prompt\"");
  EXPECT_CONTAINS(prompts_error("[1]\n"), "prompts.jsonl:1: not a JSON object");
  EXPECT_CONTAINS(prompts_error("{\n"), "prompts.jsonl:1: malformed JSON");
  EXPECT_CONTAINS(prompts_error("\n"), "contains no prompt");
  EXPECT_CONTAINS(prompts_error("{\"prompt\": \"a\"}\n", {"--prompt=a"}), "pass only one of --prompt");
}

TEST_F(InferenceLayoutsTest, RejectsUnsupportedLayouts) {
  train("run");
  const Outcome copies = run_on(2, generate());
  EXPECT_EQ(copies.code, 2);
  EXPECT_CONTAINS(copies.err, "start as many ranks as --parallel.tensor_model_parallel_size");
  const Outcome heads = run_on(3, evaluate(layout(3, 1)));
  EXPECT_EQ(heads.code, 2);
  EXPECT_CONTAINS(heads.err, "tensor_model_parallel_size = 3 does not divide num_attention_heads = 4");
  const Outcome context = run_on(2, generate({"--parallel.context_parallel_size=2"}));
  EXPECT_EQ(context.code, 2);
  EXPECT_CONTAINS(context.err, "--parallel.context_parallel_size must be 1");
  // mpirun starts the second rank with a different command line.
  Strings launcher = mpirun(1);
  launcher.push_back(test::Program::path());
  for (const std::string& word : evaluate()) launcher.push_back(word);
  for (const char* word : {":", "-n", "1"}) launcher.emplace_back(word);
  const Outcome differing = test::Program(evaluate({"--micro_batch_size=3"}), root() / "process", 0, launcher).wait();
  EXPECT_EQ(differing.code, 2);
  EXPECT_CONTAINS(differing.err, "rank 1 has a different command line than rank 0");
  const Outcome training = run(evaluate({"--parallel.zero_stage=1"}));
  EXPECT_EQ(training.code, 2);
  EXPECT_CONTAINS(training.err, "zero_stage");
}

}  // namespace
}  // namespace mcpp
