#include <gtest/gtest.h>

#include "comm/watchdog/status_board.h"
#include "comm/watchdog/watchdog.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::Test;

class HangDetectorTest : public Test {
 protected:
  /// Returns the verdict after this many checks, one second apart.
  std::optional<std::string> after(int seconds) {
    for (int i = 0; i < seconds; ++i)
      if (auto reason = detector.check(recorder.snapshot(), 1)) return reason;
    return std::nullopt;
  }
  /// Simulates steps of this many seconds each, with activity every second.
  void train(i64 first, i64 last, int seconds) {
    for (i64 iteration = first; iteration <= last; ++iteration) {
      recorder.enter(Activity::Training, iteration);
      for (int i = 0; i < seconds; ++i) {
        group.collective("all_reduce", 4);
        ASSERT_EQ(detector.check(recorder.snapshot(), 1), std::nullopt);
      }
    }
  }

  FlightRecorder recorder;
  GroupLog group{recorder, "dp", {0, 3}};
  HangDetector detector;
};

TEST_F(HangDetectorTest, DetectsWaitBeyondLimit) {
  const auto entry = group.collective("barrier", 0);
  EXPECT_EQ(after(601), std::nullopt);
  const auto reason = after(2);
  ASSERT_TRUE(reason.has_value());
  EXPECT_CONTAINS(*reason, "hang: has waited ");
  EXPECT_CONTAINS(*reason, "barrier #1 in dp (ranks 0 3)");
}

TEST_F(HangDetectorTest, IgnoresOperationsThatFinish) {
  for (int i = 0; i < 100; ++i) {
    const auto entry = group.collective("barrier", 0);
    EXPECT_EQ(after(100), std::nullopt);
  }
}

TEST_F(HangDetectorTest, IgnoresOperationsWithoutWaiters) {
  auto entry = group.recv(1, 4);
  entry.pause();
  EXPECT_EQ(after(5000), std::nullopt);
  entry.resume();
  EXPECT_EQ(after(600), std::nullopt);
  EXPECT_NE(after(2), std::nullopt);
}

TEST_F(HangDetectorTest, CountsOperationsQueuedOnDevice) {
  group.collective("all_reduce", 4).track_completion([] { return false; });
  EXPECT_NE(after(602), std::nullopt);
}

TEST_F(HangDetectorTest, UsesShortLimitBetweenConsecutiveSteps) {
  train(1, 3, 2);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_EQ(after(60), std::nullopt);
  EXPECT_NE(after(3), std::nullopt);
}

TEST_F(HangDetectorTest, AllowsFiveTimesLongestPreviousStep) {
  train(1, 3, 40);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_EQ(after(200), std::nullopt);
  EXPECT_NE(after(10), std::nullopt);
}

TEST_F(HangDetectorTest, NeverExceedsLongestLimit) {
  recorder.set_limits({.distributed = 100, .step = 1});
  train(1, 3, 90);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_NE(after(102), std::nullopt);
}

TEST_F(HangDetectorTest, UsesLongLimitForStepAfterSave) {
  train(1, 3, 1);
  recorder.enter(Activity::Saving, 3);
  EXPECT_EQ(after(2), std::nullopt);
  recorder.enter(Activity::Training, 4);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_EQ(after(590), std::nullopt);
  EXPECT_NE(after(20), std::nullopt);
}

TEST_F(HangDetectorTest, CountsSaveTooShortToObserve) {
  train(1, 3, 1);
  recorder.enter(Activity::Saving, 3);
  recorder.enter(Activity::Training, 4);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_EQ(after(590), std::nullopt);
  EXPECT_NE(after(20), std::nullopt);
}

TEST_F(HangDetectorTest, CountsStepsTooShortToObserve) {
  for (i64 iteration = 1; iteration < 9; ++iteration) recorder.enter(Activity::Training, iteration);
  const auto entry = group.collective("all_reduce", 4);
  EXPECT_EQ(after(60), std::nullopt);
  EXPECT_NE(after(3), std::nullopt);
}

TEST_F(HangDetectorTest, DetectsStepWithoutActivity) {
  train(1, 3, 1);
  EXPECT_EQ(after(59), std::nullopt);
  const auto reason = after(3);
  ASSERT_TRUE(reason.has_value());
  EXPECT_CONTAINS(*reason, "iteration 3 has shown no activity");
}

TEST_F(HangDetectorTest, IgnoresSaveWithoutCommunication) {
  train(1, 3, 1);
  recorder.enter(Activity::Saving, 3);
  EXPECT_EQ(after(5000), std::nullopt);
}

TEST_F(HangDetectorTest, ReportsDeviceFailuresImmediately) {
  group.collective("all_reduce", 4).track_completion([]() -> bool { throw std::runtime_error("remote error"); });
  recorder.poll();
  EXPECT_EQ(after(1), "communication failed: remote error");
}

TEST(StatusBoardTest, ShowsActivityOfEachRank) {
  const std::shared_ptr<void> memory(std::calloc(1, static_cast<std::size_t>(StatusBoard::bytes_for(2))), std::free);
  StatusBoard first(memory, 2, 0, 6), second(memory, 2, 1, 7);
  first.show("computes", false);
  second.show(std::string(1000, 'x'), true);
  const auto all = first.read();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rank, 6);
  EXPECT_EQ(all[0].text, "computes");
  EXPECT_EQ(all[1].rank, 7);
  EXPECT_TRUE(all[1].waits);
  EXPECT_EQ(all[1].text, std::string(192, 'x'));
  EXPECT_EQ(all[1].heartbeats, 1u);
  EXPECT_TRUE(second.claim());
  EXPECT_FALSE(first.claim());
}

StatusBoard::Status status(int rank, u64 heartbeats, bool waits) {
  return {.rank = rank,
          .process = 100 + rank,
          .heartbeats = heartbeats,
          .waits = waits,
          .text = waits ? "waits" : "computes"};
}

TEST(NodeReportTest, NamesMissingRanks) {
  const std::string stopped = node_report({status(0, 5, true), status(1, 5, false)},  //
                                          {status(0, 9, true), status(1, 5, false)});
  EXPECT_CONTAINS(stopped, "rank 0 waits");
  EXPECT_CONTAINS(stopped, "rank 1 does not answer");
  EXPECT_CONTAINS(stopped, "not running: rank 1");
  const std::string busy = node_report({status(0, 5, true), status(1, 5, false), status(2, 5, false)},  //
                                       {status(0, 9, true), status(1, 6, false), status(2, 6, false)});
  EXPECT_CONTAINS(busy, "still computing: ranks 1 2");
  const std::string all = node_report({status(0, 5, true), status(1, 5, true)},  //
                                      {status(0, 9, true), status(1, 6, true)});
  EXPECT_CONTAINS(all, "all ranks of this node wait");
}

}  // namespace
}  // namespace mcpp
