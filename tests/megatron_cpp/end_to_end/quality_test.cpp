// bench quality with the real program: comparisons from the start, from a checkpoint and from a common first part, kill
// and continue, several ranks, and unusable input.
#include <filesystem>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class QualityEndToEndTest : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    write_variants("[variant.training]\nprecision = \"bf16\"\n");
  }
  /// Writes the baseline, a variant with the same settings, and one with these settings.
  void write_variants(const std::string& settings) const {
    write_file_atomic(folder_ / "variants.toml",
                      "[[variant]]\nname = \"plain\"\n[[variant]]\nname = \"copy\"\nmax_difference = 0\n"
                      "[[variant]]\nname = \"changed\"\n" +
                          settings);
  }
  Strings quality(const Strings& more = {}) const {
    Strings args{"bench",
                 "quality",
                 (root() / "run.toml").string(),
                 str("--variants=", at("variants.toml")),
                 str("--results=", at("results.jsonl")),
                 "--checkpoint.save="};  // the configuration has a save_interval
    if (std::ranges::none_of(more, [](const std::string& word) { return word.starts_with("--seeds="); }))
      args.emplace_back("--seeds=2");
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  std::vector<nlohmann::json> results(const std::string& type = "run") const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / "results.jsonl");
    for (std::string line; std::getline(file, line);)
      if (nlohmann::json object = nlohmann::json::parse(line); object["type"] == type)
        lines.push_back(std::move(object));
    return lines;
  }
  /// Returns the runs without their durations, as text.
  std::string runs() const {
    std::string text;
    for (nlohmann::json& line : results()) {
      line.erase("seconds");
      text += line.dump() + "\n";
    }
    return text;
  }
  /// Expects that a comparison that is killed twice and continued has the results of an uninterrupted one, and that no
  /// finished run is repeated.
  void expect_same_results_after_kills(const Strings& options) const {
    run_ok(quality(options));
    const std::string expected = runs();
    std::filesystem::remove(folder_ / "results.jsonl");
    std::size_t finished = 0;
    for (int kill = 0; kill < 2; ++kill) {
      test::Program program(quality(options), root() / "process");
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
      while (results().size() < finished + 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      }
      program.signal(SIGKILL);
      EXPECT_EQ(program.wait().code, -SIGKILL);
      finished = results().size();
    }
    const std::string text = run_ok(quality(options));
    EXPECT_CONTAINS(text, str("run ", finished + 1, " of 6: "));
    EXPECT_EQ(text.find(str("run ", finished, " of 6: ")), std::string::npos);
    EXPECT_EQ(runs(), expected);
  }
  std::string error(const Strings& more) const {
    const Outcome outcome = run(quality(more));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  }
  /// Returns the names in the folder of the test.
  Strings files() const {
    Strings names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(QualityEndToEndTest, ComparesPairsOfRuns) {
  const std::string text = run_ok(quality({str("--svg=", at("chart.svg"))}));
  EXPECT_CONTAINS(text, "run 1 of 6: plain, seed 1234: loss ");
  EXPECT_CONTAINS(text, "run 6 of 6: changed, seed 1235: loss ");
  EXPECT_CONTAINS(text, "+0.000 %     0.000 %");
  EXPECT_CONTAINS(text, "identical to plain");
  const auto lines = results();
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["curve"], lines[1]["curve"]);
  EXPECT_NE(lines[0]["loss"], lines[2]["loss"]);
  EXPECT_NE(lines[0]["loss"], lines[3]["loss"]);  // a different seed
  // Evaluations at 5 and 10, and of the trained model.
  ASSERT_EQ(lines[0]["curve"].size(), 3U);
  EXPECT_EQ(lines[0]["curve"][2][0], 12);
  EXPECT_EQ(lines[2]["settings"]["training.precision"], "\"bf16\"");
  EXPECT_FALSE(lines[0]["settings"].contains("training.precision"));
  EXPECT_CONTAINS(read_text_file(folder_ / "chart.svg"), ">changed<");
  EXPECT_EQ(files(), (Strings{"chart.svg", "results.jsonl", "variants.toml"}));
}

TEST_F(QualityEndToEndTest, MatchesPretraining) {
  run_ok(quality());
  train("run", {"--training.seed=1235", "--training.precision=bf16"});
  const auto validation = records("run", "validation");
  ASSERT_EQ(validation.size(), 3U);
  EXPECT_EQ(results().at(5)["loss"], validation[2]["lm_loss"]);
}

TEST_F(QualityEndToEndTest, ContinuesAfterKill) {
  expect_same_results_after_kills({});
  EXPECT_EQ(results("start").size(), 3U);
  // Nothing is left to train, but the table is printed again; another seed is added to the others.
  EXPECT_CONTAINS(run_ok(quality()), "identical to plain");
  EXPECT_EQ(results("start").size(), 3U);
  const std::string text = run_ok(quality({"--seeds=3"}));
  EXPECT_CONTAINS(text, "run 7 of 9: plain, seed 1236");
  EXPECT_EQ(text.find("run 6 of 9"), std::string::npos);
}

TEST_F(QualityEndToEndTest, ContinuesBranchesAfterKill) {
  write_variants("[variant.optimizer]\nlr = 2e-2\n");
  expect_same_results_after_kills({"--branch_iteration=8"});
  EXPECT_EQ(files(), (Strings{"results.jsonl", "variants.toml"}));
}

TEST_F(QualityEndToEndTest, StopsAtSignal) {
  test::Program program(quality({"--training.train_iters=100000"}), root() / "process");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  program.signal(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 85) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "has the finished runs; start the same command again to continue");
  EXPECT_TRUE(results().empty());
}

TEST_F(QualityEndToEndTest, StartsFromCheckpoint) {
  train("start", {"--training.exit_interval=8"});
  const Strings from{str("--checkpoint.load=", at("start"))};
  write_variants("[variant.optimizer]\nlr = 2e-2\n");
  EXPECT_CONTAINS(run_ok(quality(from)), "identical to plain");
  const auto lines = results();
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["curve"][0][0], 10);         // the checkpoint has 8 iterations
  EXPECT_NE(lines[0]["loss"], lines[3]["loss"]);  // a different order of the samples
  EXPECT_CONTAINS(error(plus(from, "--training.train_iters=8")), "has finished 8 iterations, so that nothing is left");
  EXPECT_CONTAINS(error({str("--checkpoint.load=", at("missing"))}), "missing");
  write_variants("[variant.training]\nprecision = \"bf16\"\n");
  EXPECT_CONTAINS(error(from), "variant changed: ");
  EXPECT_CONTAINS(error(from), "training.precision: \"fp32\" in the checkpoint, \"bf16\" now");
}

TEST_F(QualityEndToEndTest, BranchesOffCommonRun) {
  write_variants("[variant.optimizer]\nlr = 2e-2\n");
  const Strings branch{"--branch_iteration=8"};
  EXPECT_CONTAINS(run_ok(quality(branch)), "identical to plain");
  const auto lines = results();
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0]["settings"]["branch_iteration"], "8");
  EXPECT_EQ(files(), (Strings{"results.jsonl", "variants.toml"}));
  // The baseline continues its own first part.
  train("plain");
  EXPECT_EQ(lines[0]["loss"], records("plain", "validation").back()["lm_loss"]);
  EXPECT_CONTAINS(error({"--branch_iteration=12"}), "--branch_iteration=12: must be less than the length");
  EXPECT_CONTAINS(error({"--branch_iteration=4"}), "branch_iteration: 8 in the file, 4 now");
}

TEST_F(QualityEndToEndTest, RunsOnSeveralRanks) {
  const Outcome outcome = run_on(2, quality({"--parallel.zero_stage=1"}));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.out, "identical to plain");
  EXPECT_EQ(results().size(), 6U);
}

TEST_F(QualityEndToEndTest, RecordsFailedTraining) {
  write_variants("[variant.optimizer]\nlr = 1e30\n");
  const std::string text = run_ok(quality({"--training.max_consecutive_skips=1"}));
  EXPECT_CONTAINS(text, "changed, seed 1234: failed: ");
  EXPECT_CONTAINS(text, "failed with seeds [1234, 1235]");
  EXPECT_EQ(results().size(), 6U);
  run_ok(quality({"--training.max_consecutive_skips=1"}));
  EXPECT_EQ(results().size(), 6U);  // a failure is not repeated
}

TEST_F(QualityEndToEndTest, RejectsUnusableInput) {
  EXPECT_CONTAINS(error({"--seeds=1"}), "--seeds=1: one seed has no standard error; use at least 2");
  EXPECT_CONTAINS(error({"--sedes=3"}), "--sedes=3: unknown option; did you mean --seeds?");
  EXPECT_CONTAINS(error({"--variants=none.toml"}), "none.toml");
  EXPECT_CONTAINS(error({"--training.eval_iters=0"}), "training.eval_iters: is 0");
  EXPECT_CONTAINS(error({"--data.split=100,0,0"}), "there is no held-out text");
  EXPECT_CONTAINS(error({"--svg=nowhere/chart.svg"}), "--svg=nowhere/chart.svg: no such folder: nowhere");
  EXPECT_CONTAINS(error({"--branch_iteration=4", str("--checkpoint.load=", at("a"))}),
                  "--branch_iteration: cannot be combined with checkpoint.load");
  write_variants("[variant.training]\nfp8 = \"e4m3\"\n");
  EXPECT_CONTAINS(error({}), "variant.training.fp8: ");
  write_variants("[variant.parallel]\ntensor_model_parallel_size = 3\n");
  EXPECT_CONTAINS(error({}), "variant changed: this configuration cannot run on 1 rank");
  EXPECT_EQ(files(), Strings{"variants.toml"});
}

}  // namespace
}  // namespace mcpp
