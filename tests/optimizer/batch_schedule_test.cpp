#include "optimizer/batch_schedule.h"

#include <gtest/gtest.h>

#include <string>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr BatchShape kShape{.micro_batch_size = 2, .data_parallel_size = 4};

TEST(BatchSchedule, ConstantGivesTheSameAlways) {
  const BatchSchedule schedule = BatchSchedule::constant(64, kShape);
  for (const i64 samples : {i64{0}, i64{64}, i64{1} << 40}) {
    EXPECT_EQ(schedule.global_batch_size(samples), 64);
    EXPECT_EQ(schedule.microbatches(samples), 8);
  }
  EXPECT_EQ(schedule.samples_after(10), 640);
  EXPECT_EQ(schedule.iterations_within(639), 9);
}

TEST(BatchSchedule, GrowsAtThresholdsInTokens) {
  const BatchSchedule schedule = BatchSchedule::parse("0:768  250B:1536 1.5T:3072", 4096, kShape);
  const i64 second = 250'000'000'000 / 4096, third = 1'500'000'000'000 / 4096;
  EXPECT_EQ(schedule.global_batch_size(0), 768);
  EXPECT_EQ(schedule.global_batch_size(second - 1), 768);
  EXPECT_EQ(schedule.global_batch_size(second), 1536);
  EXPECT_EQ(schedule.microbatches(second), 192);
  EXPECT_EQ(schedule.global_batch_size(third - 1), 1536);
  EXPECT_EQ(schedule.global_batch_size(third), 3072);
  EXPECT_EQ(schedule.largest_batch_size(), 3072);
}

TEST(BatchSchedule, WithoutASequenceLengthThresholdsAreSamples) {
  const BatchSchedule schedule = BatchSchedule::parse("0:8 1K:16 1500:24", 0, kShape);
  EXPECT_EQ(schedule.global_batch_size(999), 8);
  EXPECT_EQ(schedule.global_batch_size(1000), 16);
  EXPECT_EQ(schedule.global_batch_size(1500), 24);
}

TEST(BatchSchedule, CountsAsATrainingLoopDoes) {
  const BatchSchedule schedule = BatchSchedule::parse("0:8 20:16 25:24 200:40", 0, kShape);
  i64 consumed = 0;
  for (i64 iteration = 0; iteration < 30; ++iteration) {
    EXPECT_EQ(schedule.samples_after(iteration), consumed);
    EXPECT_EQ(schedule.iterations_within(consumed), iteration);
    const i64 next = consumed + schedule.global_batch_size(consumed);
    EXPECT_EQ(schedule.iterations_within(next - 1), iteration);
    consumed = next;
  }
}

void expect_refused(const std::string& text, const std::string& what, BatchShape shape = kShape) {
  try {
    BatchSchedule::parse(text, 1, shape);
    FAIL() << "\"" << text << "\" should be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput);
    const std::string message = error.what();
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("training."), std::string::npos) << message;
  }
}

TEST(BatchSchedule, RefusesBadText) {
  expect_refused("", "no entry");
  expect_refused("  ", "no entry");
  expect_refused("768", "no colon");
  expect_refused("0:", "batch size");
  expect_refused(":8", "threshold");
  expect_refused("0:8x", "batch size");
  expect_refused("0:-8", "batch size");
  expect_refused("0:8.5", "batch size");
  expect_refused("x:8", "threshold");
  expect_refused("0:8 1G:16", "threshold");
  expect_refused("0:8 1KK:16", "threshold");
  expect_refused("0:8 -5:16", "threshold");
  expect_refused("0:8 nan:16", "threshold");
  expect_refused("0:8 1.0005K:16", "not whole");
  expect_refused("0:8 99999999T:16", "threshold");
  expect_refused("5:8", "must be 0");
  expect_refused("0:8 0:16", "after the entry before");
  expect_refused("0:8 20:16 10:24", "after the entry before");
  expect_refused("0:16 20:8", "larger");
  expect_refused("0:8 20:8", "larger");
}

TEST(BatchSchedule, RefusesSizesThatCannotBeDivided) {
  expect_refused("0:8 20:20", "16 and 24");
  expect_refused("0:4", "nearest sizes are 8");
  expect_refused("0:8", "micro_batch_size", {.micro_batch_size = 0, .data_parallel_size = 1});
  try {
    BatchSchedule::constant(12, kShape);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("training.global_batch_size: a batch of 12"), std::string::npos);
  }
}

}  // namespace
}  // namespace mcpp
