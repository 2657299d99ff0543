#include "megatron_cpp/config/batch_size_schedule.h"

#include <gtest/gtest.h>

#include "base/strings.h"

namespace mcpp {
namespace {

BatchSizeSchedule parse(const std::vector<std::string>& texts) {
  return parse_batch_size_schedule(texts, 1000, 2);
}

std::string problem_of(const std::string& text) {
  const BatchSizeSchedule schedule = parse({text});
  return schedule.problems.empty() ? "" : schedule.problems[0];
}

TEST(BatchSizeScheduleTest, ParsesSamplesTokensAndLists) {
  const std::vector<BatchSizeStep> expected{{0, 4}, {100, 8}, {250000, 16}};
  EXPECT_EQ(parse({"0:4  100:8 250M:16"}).steps, expected);
  EXPECT_EQ(parse({"0:4", "100:8 250M:16"}).steps, expected);
  EXPECT_EQ(parse({"0B:4 1.5K:8"}).steps, (std::vector<BatchSizeStep>{{0, 4}, {2, 8}}));
  EXPECT_EQ(parse({"0:4 2T:8"}).steps[1].first_sample, 2000000000);
  EXPECT_TRUE(parse({}).steps.empty());
}

TEST(BatchSizeScheduleTest, RejectsBadSteps) {
  const std::string form = " is not of the form AT:SIZE, such as 0:768, 2000000:1024 (samples) or 250B:1536 (tokens)";
  for (const char* bad : {"4", "0:", ":4", "x:4", "0:4x", "-1:4", "1.5:4", "1e30B:4", "nanK:4", "1.00001K:2", "K:4"}) {
    EXPECT_EQ(problem_of(bad), str("\"", bad, "\"", form));
  }
  EXPECT_EQ(problem_of("5:4"), "\"5:4\": the first step must be at 0");
  EXPECT_EQ(problem_of("0:4 0:8"), "\"0:8\": must be later than the previous step");
  EXPECT_EQ(problem_of("0:4 9:4"), "\"9:4\": the batch size may only grow");
  EXPECT_EQ(problem_of("0:0"), "\"0:0\": the batch size must be from 1 to 1000000");
  EXPECT_EQ(problem_of("0:3"), "\"0:3\": the batch size is not divisible by micro_batch_size 2");
  EXPECT_EQ(problem_of(" "), "has no step");
}

TEST(BatchSizeScheduleTest, FullBatchesMatchSimulation) {
  for (const char* text : {"0:4", "0:4 10:6", "0:2 3:4 5:6 90:20", "0:6 1:8 2:10", "0:4 9000000000000000000:8"}) {
    const std::vector<BatchSizeStep> steps = parse({text}).steps;
    for (i64 samples = 0; samples < 200; ++samples) {
      for (const i64 consumed : {0, 1, 7, 60, 250}) {
        FullBatches expected;
        for (;;) {
          const i64 size = batch_size_at(steps, consumed + expected.samples);
          if (consumed + expected.samples + size > samples) break;
          expected.samples += size;
          ++expected.iterations;
        }
        const FullBatches found = full_batches(steps, samples, consumed);
        EXPECT_EQ(found.iterations, expected.iterations) << text << " " << samples << " " << consumed;
        EXPECT_EQ(found.samples, expected.samples) << text << " " << samples << " " << consumed;
      }
    }
  }
}

}  // namespace
}  // namespace mcpp
