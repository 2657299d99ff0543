// A step as a page: its marks are the times that were predicted. tests/report/run.sh looks at it in a browser.
#include "plan/report/step_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "plan/report/step_parts.h"
#include "tests/support/toy_cluster.h"

namespace mcpp {
namespace {

const Layout kLayout{.world_size = 16, .tp = 2, .pp = 4, .sequence_parallel = true, .zero_stage = 1};

TEST(StepPage, PartsOfEveryRankAddUpToTheStep) {
  const Hardware hardware = test::toy_cluster(50, 5);
  const Implementation program;
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  for (const Layout& layout : {kLayout, Layout{.world_size = 8, .zero_stage = 3},
                               Layout{.world_size = 8, .pp = 4, .schedule = ScheduleKind::Interleaved, .chunks = 2},
                               Layout{.world_size = 4, .pp = 4, .stages = "Et*5|(t*4|)*2t*3L"}}) {
    const Job job{hardware, program, work, layout};
    const StepTime step = step_time(job);
    const std::vector<StepTime> ranks = step_time_by_rank(job);
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

TEST(StepPage, HasABoxForEachPartOfEachPass) {
  const Hardware hardware = test::toy_cluster(50, 5);
  const Implementation program;
  const Workload work = test::toy_workload(16, 2048, 16, 64);
  const Job job{hardware, program, work, kLayout};
  const std::string page = step_page(job, step_time(job));
  for (const char* part : {"<!DOCTYPE html>", "tp 2 sp, pp 4", "The first 16 of 32", "rank 3", "</html>"})
    EXPECT_THAT(page, testing::HasSubstr(part));
  for (const char* bad : {"nan", "inf\"", "<script", "http"}) EXPECT_THAT(page, testing::Not(testing::HasSubstr(bad)));
  // Of each of 4 ranks, 16 forward and 16 backward passes with products.
  const std::string drawn = page.substr(page.find("data-chart=\"passes\""), page.find("data-chart=\"memory\""));
  const std::regex products("data-part=\"products\"");
  const std::string passes = drawn.substr(0, drawn.find("</svg>"));
  EXPECT_EQ(std::distance(std::sregex_iterator(passes.begin(), passes.end(), products), std::sregex_iterator()),
            4 * 2 * 16);
  EXPECT_THAT(passes, testing::HasSubstr("tensor-parallel communication"));
}

}  // namespace
}  // namespace mcpp
