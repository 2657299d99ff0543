#include "megatron_cpp/bench/quality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "megatron_cpp/bench/quality_results.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::quality_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

QualityRun finished(const std::string& variant, i64 seed, std::vector<HeldOutLoss> curve) {
  return {.variant = variant, .seed = seed, .curve = std::move(curve)};
}

/// Baseline with losses 2, 4 and 5 by seed, and "other", whose losses are larger by these percentages.
QualityComparison compared(const std::vector<double>& percent, std::optional<double> max_difference = {}) {
  QualityComparison comparison{.variants = {{"base"}, {"other", max_difference}}, .runs = {}};
  const std::vector<double> losses{2, 4, 5};
  for (std::size_t i = 0; i < percent.size(); ++i) {
    const auto seed = static_cast<i64>(i);
    comparison.runs.push_back(finished("base", seed, {{10, 8}, {20, losses[i]}}));
    comparison.runs.push_back(finished("other", seed, {{10, 8}, {20, losses[i] * (1 + percent[i] / 100)}}));
  }
  return comparison;
}

TEST(QualityComparisonTest, ComparesRunsWithSameSeed) {
  const QualityComparison comparison = compared({1, 2, 3});
  const std::vector<double> differences = comparison.differences("other");
  ASSERT_EQ(differences.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(differences[i], static_cast<double>(i + 1), 1e-12);
  EXPECT_THAT(comparison.differences("other", 10), ElementsAre(0, 0, 0));
  EXPECT_THAT(comparison.differences("other", 15), ElementsAre());
  // Mean 2, standard error 1 / sqrt(3), and 4.303 of them, by hand.
  const std::string table = quality_table(comparison);
  EXPECT_THAT(table, HasSubstr("+2.000 %     0.577 %  -0.484 % to +4.484 %  no significant difference"));
  EXPECT_THAT(table, HasSubstr("base         3  3.6667"));
}

TEST(QualityComparisonTest, LeavesOutSeedsOfUnfinishedPairs) {
  QualityComparison comparison = compared({1, 1.1});
  comparison.runs.push_back(finished("base", 2, {{20, 5}}));
  comparison.runs.push_back(finished("other", 3, {{20, 50}}));
  EXPECT_EQ(comparison.differences("other").size(), 2U);
}

TEST(QualityComparisonTest, FindsIdenticalRuns) {
  const QualityComparison comparison = compared({0, 0, 0}, 0.0);
  EXPECT_THAT(comparison.differences("other"), ElementsAre(0, 0, 0));
  EXPECT_THAT(quality_table(comparison), HasSubstr("+0.000 %     0.000 %  +0.000 % to +0.000 %  identical to base"));
  EXPECT_THAT(quality_table(compared({0, 1e-9, 0}, 0.0)), HasSubstr("not identical to base"));
}

TEST(QualityComparisonTest, JudgesByConfidenceInterval) {
  EXPECT_THAT(quality_table(compared({1, 1.01, 0.99})), HasSubstr("significantly higher"));
  EXPECT_THAT(quality_table(compared({-1, -1.01, -0.99})), HasSubstr("significantly lower"));
  EXPECT_THAT(quality_table(compared({0.1, 0.11, 0.12}, 0.25)), HasSubstr("  within 0.25 %"));
  EXPECT_THAT(quality_table(compared({1, 1.01, 0.99}, 0.25)), HasSubstr("beyond 0.25 %"));
  EXPECT_THAT(quality_table(compared({-1, -1.01, -0.99}, 0.25)), HasSubstr("beyond 0.25 %"));
  EXPECT_THAT(quality_table(compared({0, 1, 0}, 0.25)), HasSubstr("undecided whether within 0.25 %: needs more seeds"));
  EXPECT_THAT(quality_table(compared({0.1}, 0.25)), HasSubstr("undecided: needs two seeds"));
}

TEST(QualityComparisonTest, NamesFailedRuns) {
  QualityComparison comparison = compared({1, 1});
  comparison.runs.push_back({.variant = "other", .seed = 7, .curve = {}, .failure = "loss is not finite"});
  comparison.runs.push_back(finished("base", 7, {{20, 3}}));
  EXPECT_EQ(comparison.differences("other").size(), 2U);
  EXPECT_THAT(quality_table(comparison), HasSubstr("failed with seeds [7]"));
  EXPECT_THAT(quality_table({.variants = {{"base"}, {"other"}}, .runs = {}}), HasSubstr("no finished pair of runs"));
}

TEST(QualityChartTest, DrawsEveryVariant) {
  const std::string svg = quality_chart(compared({1, 2, 3}), "a < b & c");
  for (const char* part : {"<svg ", "a &lt; b &amp; c", ">other<", "from base in percent", ">20<", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
  for (const std::string& chart : {svg, quality_chart(compared({0, 0}), ""), quality_chart(compared({1}), "")}) {
    EXPECT_THAT(chart, Not(HasSubstr("nan")));
    EXPECT_THAT(chart, Not(HasSubstr("inf")));
  }
}

class QualityResultsTest : public testing::Test {
 protected:
  QualityRun run(i64 seed = 3) const {
    return {.variant = "mxfp8",
            .seed = seed,
            .curve = {{5, 4.25}, {10, 1.0 / 3}},
            .seconds = 1.5,
            .settings = {{"training.fp8", "\"e4m3\""}, {"training.train_iters", "10"}}};
  }
  std::string error(const std::string& content) const {
    write_file_atomic(file_, content);
    return test::input_error([&] { QualityResults{file_}; });
  }

  const test::ScratchFolder folder_;
  const Path file_ = folder_.path() / "results.jsonl";
};

TEST_F(QualityResultsTest, ReadsWrittenRuns) {
  QualityResults results(file_);
  results.add_start();
  results.add(run());
  QualityRun failed{.variant = "nvfp4", .seed = 4, .curve = {}, .failure = "loss \"NaN\""};
  results.add(failed);
  const QualityResults read(file_);
  EXPECT_THAT(read.runs(), ElementsAre(run(), failed));
  EXPECT_TRUE(read.contains(run()));
  EXPECT_TRUE(read.contains(failed));
  EXPECT_FALSE(read.contains(run(4)));
}

TEST_F(QualityResultsTest, RejectsRunsWithOtherSettings) {
  QualityResults results(file_);
  results.add(run());
  QualityRun planned = run();
  planned.settings["training.train_iters"] = "20";
  planned.settings["optimizer.lr"] = "0.1";
  EXPECT_EQ(test::input_error([&] { results.contains(planned); }),
            str(file_.string(),
                ": has runs of the variant \"mxfp8\" with other settings:\n"
                "  optimizer.lr: the default in the file, 0.1 now\n"
                "  training.train_iters: 10 in the file, 20 now\n"
                "Set --results to a different file"));
}

TEST_F(QualityResultsTest, RejectsForeignFiles) {
  EXPECT_THAT(error("{\"type\": \"start\"}\nnot json\n"), HasSubstr("results.jsonl:2"));
  EXPECT_THAT(error("{\"type\": \"train\"}\n"),
              HasSubstr(":1: has the type \"train\", which bench quality does not write"));
  EXPECT_THAT(
      error("{\"type\": \"run\", \"variant\": \"a\", \"seed\": 1, \"curve\": [], \"seconds\": 1, \"settings\": {}}\n"),
      HasSubstr("'curve' is empty"));
  EXPECT_THAT(error("{\"type\": \"run\", \"variant\": \"a\", \"seed\": 1, \"curve\": [[1]], \"seconds\": 1}\n"),
              HasSubstr("'curve' must consist of pairs"));
}

TEST_F(QualityResultsTest, SelectsSettingsThatDecideResults) {
  Config config;
  EXPECT_TRUE(run_settings(config).empty());
  config.training.seed = 5;
  config.training.train_iters = 20;
  config.checkpoint.save = "runs/a";
  config.checkpoint.load = "runs/b";
  config.logging.log_interval = 3;
  config.device.num_threads = 7;
  EXPECT_THAT(run_settings(config),
              ElementsAre(std::pair("checkpoint.load", "\"runs/b\""), std::pair("training.train_iters", "20")));
}

TEST_F(QualityResultsTest, ReadsHeldOutLossesOfMetrics) {
  write_file_atomic(file_, R"({"type":"run","iteration":0}
{"type":"train","iteration":5,"lm_loss":9.0}
{"type":"validation","iteration":5,"lm_loss":4.5}
{"type":"test","iteration":10,"lm_loss":1.0}
{"type":"validation","iteration":10,"lm_loss":null}
)");
  const std::vector<HeldOutLoss> losses = read_held_out_losses(file_);
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0], (HeldOutLoss{5, 4.5}));
  EXPECT_TRUE(std::isnan(losses[1].loss));
}

}  // namespace
}  // namespace mcpp::quality_test
