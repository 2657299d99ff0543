// Likelihood tasks on every layout, and several texts in one call. tests/lm_eval/check.py compares the scores with
// lm-evaluation-harness.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class EvaluationTasksTest : public EndToEnd {
 protected:
  /// Imports the golden model as the run of this test. Returns the golden task files.
  std::string golden_tasks() const {
    const Path golden = test::golden_folder() / "tasks";
    run_ok({"checkpoint", "import-hf", golden.string(), "--save=" + at("run")});
    Strings files;
    for (const char* name : {"hellaswag", "arc", "lambada"}) files.push_back((golden / str(name, ".jsonl")).string());
    return join(files, ",");
  }
  Strings evaluate(const Strings& more) const {
    Strings words{"evaluate", "--load=" + at("run"), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Json json_of(const std::string& text) { return Json::parse(text.substr(text.find('{'))); }
  std::vector<Json> samples() const {
    std::vector<Json> lines;
    std::ifstream file(at("samples.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  std::string task_file(const std::string& name, const std::string& content) const {
    write_file_atomic(folder_ / name, content);
    return "--tasks=" + at(name);
  }
  void expect_refused(const Strings& args, const std::string& part) const {
    const Outcome outcome = run(evaluate(args));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, part);
  }
};

/// tests/lm_eval/check.py wrote the expected scores.
TEST_F(EvaluationTasksTest, ScoresMatchLmEvaluationHarness) {
  const std::string files = golden_tasks();
  const Json expected = Json::parse(read_text_file(test::golden_folder() / "tasks/expected.json"));
  const Json found = json_of(run_ok(evaluate({"--tasks=" + files, "--log_samples=" + at("samples.jsonl")})));
  ASSERT_EQ(found["tasks"].size(), 3u);
  std::map<std::string, std::vector<Json>> items;
  for (const Json& sample : samples()) items[sample["task"]].push_back(sample);
  for (const Json& task : found["tasks"]) {
    const std::string name = task["task"];
    SCOPED_TRACE(name);
    const Json& expected_task = expected[name];
    for (const auto& [key, value] : expected_task.items()) {
      if (!value.is_number() || key == "perplexity_stderr") continue;  // perplexity_stderr is a random estimate there
      EXPECT_NEAR(task[key].get<double>(), value.get<double>(), 1e-5 * std::max(1.0, value.get<double>())) << key;
    }
    ASSERT_EQ(items[name].size(), expected_task["samples"].size());
    for (std::size_t i = 0; i < items[name].size(); ++i) {
      for (std::size_t c = 0; c < expected_task["samples"][i].size(); ++c) {
        const double wanted = expected_task["samples"][i][c][0];
        EXPECT_NEAR(items[name][i]["log_likelihoods"][c].get<double>(), wanted, 1e-4 * std::max(1.0, -wanted)) << i;
        EXPECT_EQ(items[name][i]["is_greedy"][c], expected_task["samples"][i][c][1]) << i;
      }
    }
  }
}

TEST_F(EvaluationTasksTest, ScoresAreIndependentOfLayoutAndBatchSize) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Strings tasks{"--tasks=" + golden_tasks(), "--log_samples=" + at("samples.jsonl")};
  const Json one = json_of(run_ok(evaluate(tasks)));
  const std::vector<Json> items = samples();
  const auto expect_same = [&](const std::string& text, const std::string& what, double tolerance) {
    SCOPED_TRACE(what);
    const Json many = json_of(text);
    for (std::size_t task = 0; task < 3; ++task)
      for (const char* key : {"acc", "acc_stderr"}) EXPECT_EQ(many["tasks"][task][key], one["tasks"][task][key]);
    const std::vector<Json> found = samples();
    ASSERT_EQ(found.size(), items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      EXPECT_EQ(found[i]["is_greedy"], items[i]["is_greedy"]);
      for (std::size_t c = 0; c < items[i]["log_likelihoods"].size(); ++c) {
        EXPECT_NEAR(found[i]["log_likelihoods"][c].get<double>(), items[i]["log_likelihoods"][c].get<double>(),
                    tolerance);
      }
    }
  };
  for (const char* batch : {"1", "3", "64"})
    expect_same(run_ok(evaluate(plus(tasks, str("--micro_batch_size=", batch)))), str("batches of ", batch), 0);
  const std::string p = "--parallel.";
  constexpr double kSummationTolerance = 1e-3;  // for sums in a different order
  for (const auto& [ranks, keys, tolerance] :
       {std::tuple{2, Strings{}, 0.0},
        {2, {p + "tensor_model_parallel_size=2"}, kSummationTolerance},
        {2, {p + "pipeline_model_parallel_size=2"}, 0.0},
        {2, {p + "context_parallel_size=2"}, kSummationTolerance},
        {4, {p + "tensor_model_parallel_size=2", p + "pipeline_model_parallel_size=2"}, kSummationTolerance}}) {
    Strings args = evaluate(tasks);
    args.insert(args.end(), keys.begin(), keys.end());
    const Outcome outcome = run_on(ranks, args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same(outcome.out, str(ranks, " ranks, ", join(keys, " ")), tolerance);
  }
}

TEST_F(EvaluationTasksTest, NamesBadLines) {
  train("run");
  const std::string good_line = R"({"context": "a", "continuations": ["b", "c"], "answer": 1})"
                                "\n\n";
  const std::pair<std::string, std::string> cases[]{
      {"{\"context\": \"cut", "malformed JSON"},
      {"[1]", "not a JSON object"},
      {R"({"context": "a", "context": "b", "continuations": ["b", "c"], "answer": 0})",
       "the key 'context' appears twice"},
      {R"({"continuations": ["b", "c"], "answer": 0})", "has no key \"context\""},
      {R"({"context": 3, "continuations": ["b", "c"], "answer": 0})", "\"context\" is not a string"},
      {R"({"context": "a", "answer": 0})", "has no key \"continuations\""},
      {R"({"context": "a", "continuations": [], "answer": 0})", "\"continuations\" is not a list of at least one"},
      {R"({"context": "a", "continuations": ["b", ""], "answer": 0})",
       "\"continuations\" must contain non-empty strings only"},
      {R"({"context": "a", "continuations": ["b", "c"]})", "has no key \"answer\""},
      {R"({"context": "a", "continuations": ["b", "c"], "answer": 2})",
       "\"answer\" is 2; it must be a number from 0 to 1"},
      {R"({"context": "a", "continuations": ["b", "c"], "answer": "b"})", "\"answer\" is \"b\""},
      {R"({"context": "a", "continuations": ["b"]})", "has 1 continuations, line 1 several"},
      {str(R"({"context": "a", "answer": 0, "continuations": ["b", ")", std::string(200, '#'), "\"]}"),
       "tokens, the model's seq_length is 32"},
      {"{\"context\": \"\xFF\", \"continuations\": [\"b\", \"c\"], \"answer\": 0}", "malformed JSON"},
  };
  for (const auto& [line, message] : cases) {
    const std::string tasks = task_file("bad.jsonl", good_line + line + "\n" + good_line);
    const Outcome outcome = run(evaluate({tasks}));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, "bad.jsonl:3: ");
    EXPECT_CONTAINS(outcome.err, message);
  }
  expect_refused({task_file("empty.jsonl", "\n\n")}, "empty.jsonl: contains no items");
  expect_refused({"--tasks=" + at("absent.jsonl")}, "absent.jsonl");
  expect_refused({"--log_samples=x"}, "pass --text");
  expect_refused({"--text=x", "--log_samples=x"}, "--log_samples: applies only to --tasks");
}

/// Lines with features that the golden files lack.
TEST_F(EvaluationTasksTest, AcceptsSeveralAnswersAndDelimiters) {
  train("run");
  const std::string start = R"({"context": "First Citizen:\nBefore we", "continuations": ["proceed", "xylophone"], )";
  const auto acc = [&](const std::string& rest) {
    return json_of(run_ok(evaluate({task_file("one.jsonl", start + rest + "\n")})))["tasks"][0];
  };
  const Json first = acc("\"answer\": 0}"), second = acc("\"answer\": 1}");
  EXPECT_EQ(first["acc"].get<double>() + second["acc"].get<double>(), 1);
  EXPECT_EQ(acc("\"answer\": [0, 1]}")["acc"], 1);
  EXPECT_TRUE(first["acc_stderr"].is_null()) << "a single item has no error";
  EXPECT_EQ(first["items"], 1);
  // A space in the continuations instead of the delimiter changes their normalization, but not the model's input.
  const std::string bare =
                        R"({"context": "x", "target_delimiter": "", "continuations": [" one", " two"], "answer": 0})",
                    spaced = R"({"context": "x", "continuations": ["one", "two"], "answer": 0})";
  Strings lists;
  for (const std::string& line : {bare, spaced}) {
    run_ok(evaluate({task_file("one.jsonl", line), "--log_samples=" + at("samples.jsonl")}));
    lists.push_back(samples().at(0)["log_likelihoods"].dump());
  }
  EXPECT_EQ(lists[0], lists[1]);
}

/// Continuations that differ in their last token only share a forward pass, in which each has its own score.
TEST_F(EvaluationTasksTest, ChoicesWithEqualInputsScoreLikeSeparateItems) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  train("run");
  const Strings contexts{"First Citizen:\nBefore we", "ROMEO:", "x"}, choices{"a", "b", "proceed", "c", "a", "d"};
  std::string together, alone;
  for (const std::string& context : contexts) {
    together += Json{{"context", context}, {"continuations", choices}, {"answer", 0}}.dump() + "\n";
    for (const std::string& choice : choices)
      alone += Json{{"context", context}, {"continuations", {choice}}}.dump() + "\n";
  }
  const auto values = [&](const std::string& key) {
    std::vector<Json> all;
    for (const Json& sample : samples()) all.insert(all.end(), sample[key].begin(), sample[key].end());
    return all;
  };
  const auto scores = [&](const std::string& task, const std::string& key, const Strings& more) {
    run_ok(evaluate(joined({task, "--log_samples=" + at("samples.jsonl")}, more)));
    return values(key);
  };
  for (const char* key : {"log_likelihoods", "is_greedy"}) {
    const std::vector<Json> expected = scores(task_file("alone.jsonl", alone), key, {"--micro_batch_size=1"});
    ASSERT_EQ(expected.size(), contexts.size() * choices.size());
    EXPECT_EQ(expected[0], expected[4]) << "the same choice twice";
    if (key == std::string("log_likelihoods")) {
      EXPECT_NE(expected[0], expected[1]);
    }
    for (const char* batch : {"1", "2", "64"}) {
      EXPECT_EQ(scores(task_file("together.jsonl", together), key, {str("--micro_batch_size=", batch)}), expected)
          << key << ", batches of " << batch;
    }
    for (const Strings& layout : {Strings{}, {"--parallel.pipeline_model_parallel_size=2"}}) {
      const Outcome outcome = run_on(2, evaluate(joined({task_file("together.jsonl", together), "--micro_batch_size=2",
                                                         "--log_samples=" + at("samples.jsonl")},
                                                        layout)));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      EXPECT_EQ(values(key), expected) << key << ", two ranks " << join(layout, " ");
    }
  }
}

TEST_F(EvaluationTasksTest, EvaluatesTextsDatasetsAndTasksTogether) {
  train("run");
  const std::string text = read_text_file(root() / "held_out.txt");
  write_file_atomic(folder_ / "a.txt", text.substr(0, 1000));
  write_file_atomic(folder_ / "b.txt", text.substr(1000));
  run_ok({"preprocess", at("b.txt"), "--output_prefix=" + at("b"),
          "--tokenizer_model=" + (root() / "tokenizer.model").string()});
  const std::string both = "--text=" + at("a.txt") + "," + at("b.txt"), data = "--data=" + at("b_text_document");
  const Json table = json_of(
      run_ok(evaluate({both, "--by_file", data,
                       task_file("arc.jsonl", R"({"context": "a", "continuations": ["b", "c"], "answer": 1})")})));
  ASSERT_EQ(table["texts"].size(), 3u);
  EXPECT_EQ(table["texts"][0]["text"], at("a.txt"));
  EXPECT_EQ(table["texts"][2]["text"], at("b_text_document"));
  EXPECT_EQ(table["tasks"].size(), 1u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json alone = json_of(run_ok(evaluate({"--text=" + at(i == 0 ? "a.txt" : "b.txt")})));
    for (const char* key : {"tokens", "nll", "bytes", "word_perplexity"})
      EXPECT_EQ(table["texts"][i][key], alone[key]) << key;
  }
  const std::string shown = run_ok({"evaluate", "--load=" + at("run"), both, "--by_file", data});
  EXPECT_CONTAINS(shown, "token perplexity");
  EXPECT_CONTAINS(shown, "b_text_document");
  expect_refused({both, "--by_file", "--data=" + at("absent")}, "absent");
}

/// Tasks of training.eval_tasks have the scores of `evaluate --tasks`, on every layout.
TEST_F(EvaluationTasksTest, TrainingScoresTasksLikeEvaluate) {
  write_file_atomic(folder_ / "small.jsonl",
                    R"({"context": "First Citizen:\nBefore we", "continuations": ["proceed", "go", "a"], "answer": 0})"
                    "\n"
                    R"({"context": "Speak,", "continuations": ["speak.", "xylophone"], "answer": [1]})"
                    "\n"
                    R"({"context": "You are all", "continuations": ["resolved", "rather", "to die"], "answer": 2})"
                    "\n");
  const Strings tasks{"--training.eval_tasks=" + at("small.jsonl")};
  const auto expect_scores = [&](const std::string& folder) {
    const Json expected =
        json_of(run_ok({"evaluate", "--load=" + at(folder), "--json", "--tasks=" + at("small.jsonl")}));
    const std::vector<Json> found = records(folder, "task-small");
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found.back()["iteration"], 12);
    EXPECT_EQ(found.back()["items"], 3);
    for (const char* key : {"acc", "acc_norm", "acc_bytes", "acc_stderr"})
      EXPECT_EQ(found.back()[key], expected["tasks"][0][key]) << key;
  };
  train("run", plus(tasks, "--training.exit_interval=8"));
  train("run", tasks);
  expect_scores("run");
  std::set<i64> iterations;
  for (const Json& record : records("run", "task-small")) iterations.insert(record["iteration"].get<i64>());
  EXPECT_EQ(iterations.size(), records("run", "task-small").size()) << "an evaluation is repeated after the restart";
  run_ok({"report", at("run"), "--output=" + at("report.html")});
  EXPECT_CONTAINS(read_text_file(at("report.html")), "task-small");
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const std::string p = "--parallel.";
  int count = 0;
  for (const auto& [ranks, keys] : {std::pair{2, Strings{p + "pipeline_model_parallel_size=2"}},
                                    {2, {p + "tensor_model_parallel_size=2"}},
                                    {2, {p + "zero_stage=3"}}}) {
    const std::string folder = str("run_", count++);
    Strings args = pretrain(folder, tasks);
    args.insert(args.end(), keys.begin(), keys.end());
    const Outcome outcome = run_on(ranks, args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_scores(folder);
  }
}

TEST_F(EvaluationTasksTest, TrainingRejectsUnusableTasks) {
  const Outcome none =
      run(pretrain("run", {"--training.eval_tasks=a", "--data.tokenizer_model=", "--model.vocab_size=400"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_CONTAINS(none.err, "--training.eval_tasks=a: needs data.tokenizer_model");
  write_file_atomic(folder_ / "bad.jsonl", "{}\n");
  const Outcome bad = run(pretrain("run", {"--training.eval_tasks=" + at("bad.jsonl")}));
  EXPECT_EQ(bad.code, 2);
  EXPECT_CONTAINS(bad.err, "bad.jsonl:1: has no key");
  EXPECT_FALSE(std::filesystem::exists(at("run/metrics.jsonl"))) << "the run does not begin";
}

}  // namespace
}  // namespace mcpp
