// HTML page of a step: its boxes represent the predicted times. tests/report/run.sh checks it in a browser.
#include "plan/report/step_html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "plan/report/report.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::step_page_test {
namespace {

const Layout kLayout{.tp = 2, .pp = 4, .dp = 2, .sequence_parallel = true, .zero_stage = 1};

TEST(StepPageTest, PartsOfEveryRankAddUpToStep) {
  const Hardware hardware = test::toy_cluster(50, 5);
  const KernelTraits program;
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  for (const Layout& layout : {kLayout, Layout{.dp = 8, .zero_stage = 3},
                               Layout{.pp = 4, .dp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2},
                               Layout{.pp = 4, .stages = "Et*5|(t*4|)*2t*3L"}}) {
    const PredictionInput input{hardware, program, work, layout};
    const StepTime step = step_time(input);
    const std::vector<StepTime> ranks = step_time_by_rank(input);
    ASSERT_EQ(ranks.size(), static_cast<std::size_t>(layout.pp));
    for (const StepTime& rank : ranks) {
      double sum = 0;
      for (const StepPart& part : step_parts(rank)) {
        EXPECT_GE(part.seconds, -1e-12) << part.name << ", " << layout.describe();
        sum += part.seconds;
      }
      EXPECT_NEAR(sum, step.seconds, 1e-9) << layout.describe();
    }
  }
}

TEST(StepPageTest, HasBoxForEachPartOfEachPass) {
  const Hardware hardware = test::toy_cluster(50, 5);
  const KernelTraits program;
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const PredictionInput input{hardware, program, work, kLayout};
  const std::string page = step_html(input, step_time(input));
  for (const char* part : {"<!DOCTYPE html>", "tp 2 sp, pp 4", "The first 16 of 32", "rank 3", "</html>"})
    EXPECT_THAT(page, testing::HasSubstr(part));
  for (const char* bad : {"nan", "inf\"", "<script", "http"}) EXPECT_THAT(page, testing::Not(testing::HasSubstr(bad)));
  // Each of 4 ranks has 16 forward and 16 backward passes with GEMMs.
  const std::string drawn = page.substr(page.find("data-chart=\"passes\""), page.find("data-chart=\"memory\""));
  const std::regex gemms("data-part=\"gemms\"");
  const std::string passes = drawn.substr(0, drawn.find("</svg>"));
  EXPECT_EQ(std::distance(std::sregex_iterator(passes.begin(), passes.end(), gemms), std::sregex_iterator()),
            4 * 2 * 16);
  EXPECT_THAT(passes, testing::HasSubstr("tensor-parallel communication"));
}

/// Number and width of the boxes of a chart by part of the time; seconds are widths over `scale`.
struct ChartBoxes {
  std::map<std::string, int> count;
  std::map<std::string, double> width;
};
ChartBoxes boxes_of(const std::string& page, const std::string& chart) {
  const std::size_t begin = page.find("data-chart=\"" + chart + "\"");
  const std::string drawn = page.substr(begin, page.find("</svg>", begin) - begin);
  const std::regex box("width=\"([0-9.]+)\"[^>]*data-part=\"([a-z_]+)\"");
  ChartBoxes boxes;
  for (auto i = std::sregex_iterator(drawn.begin(), drawn.end(), box); i != std::sregex_iterator(); ++i) {
    ++boxes.count[(*i)[2]];
    boxes.width[(*i)[2]] += std::stod((*i)[1]);
  }
  return boxes;
}

// Every schedule, dense and with experts, with and without context parallelism: each pass shows its parts with their
// durations, and each rank shows its memory.
TEST(StepPageTest, CoversEverySchedule) {
  const Hardware hardware = test::toy_cluster(50, 5);
  const KernelTraits program;
  const Workload dense = test::toy_workload(16, 2048, 16, 64), mixture = test::toy_mixture(16, 2048, 16, 64, 8);
  for (const ScheduleRow& row : kSchedules) {
    for (const i64 cp : {1, 2}) {
      for (const Workload* work : {&dense, &mixture}) {
        Layout layout{.tp = 2, .cp = cp, .pp = 4, .dp = 16 / (2 * cp * 4), .sequence_parallel = true};
        layout.ep = work == &mixture ? 2 : 1;
        layout.schedule = row.kind, layout.chunks = row.min_chunks;
        const PredictionInput input{hardware, program, *work, layout};
        const StepTime step = step_time(input);
        const std::string page = step_html(input, step), what = layout.describe();
        for (const char* bad : {"nan", "inf\"", "-inf"})
          EXPECT_THAT(page, testing::Not(testing::HasSubstr(bad))) << what;
        const ChartBoxes boxes = boxes_of(page, "passes");
        const auto microbatches = static_cast<int>(std::min<i64>(16, layout.microbatches(64)));
        const Schedule schedule = make_schedule(row.kind, 4, microbatches, static_cast<int>(layout.chunks));
        i64 passes = 0;
        for (int rank = 0; rank < 4; ++rank) passes += schedule.passes(rank);
        EXPECT_EQ(boxes.count.at("gemms"), passes) << what;
        EXPECT_EQ(boxes.count.contains("context_parallel"), cp > 1) << what;
        EXPECT_EQ(boxes.count.contains("expert_parallel"), work == &mixture) << what;
        EXPECT_TRUE(boxes.count.contains("tensor_parallel")) << what;
        // Time per part over all ranks, relative to that of the GEMMs.
        const auto share = [&](const char* part) { return boxes.width.at(part) / boxes.width.at("gemms"); };
        double gemms = 0, tensor_parallel = 0, attention = 0;
        for (const StepTime& rank : step_time_by_rank(input)) {
          gemms += rank.work.gemms, tensor_parallel += rank.work.tensor_parallel;
          attention += rank.work.attention;
        }
        EXPECT_NEAR(share("tensor_parallel") / (tensor_parallel / gemms), 1, 0.01) << what;
        EXPECT_NEAR(share("attention") / (attention / gemms), 1, 0.01) << what;
        const std::regex levels("class=\"level\"");
        EXPECT_EQ(std::distance(std::sregex_iterator(page.begin(), page.end(), levels), std::sregex_iterator()), 4);
      }
    }
  }
}

}  // namespace
}  // namespace mcpp::step_page_test
