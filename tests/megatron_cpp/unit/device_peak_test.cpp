// Peak rate for MFU: faster steps raise a measured peak, the peak is stored with the run, and steps that exceed it
// cause a warning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/setup/device_peaks.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::HasSubstr;
using Source = DevicePeak::Source;

/// Adds a step of one sample that takes `seconds`.
void add_step(LogWindow& window, double& now, double seconds) {
  IterationStats step;
  step.global_batch_size = 1;
  RankTimings end;
  end.clock = now += seconds;
  window.add(step, end);
}

TEST(LogWindowTest, RaisesMeasuredPeakWhenStepIsFaster) {
  LogWindow window({.tokens = 1, .flops = 1e12, .peak = {.tflops = 2, .source = Source::Measured}});
  window.begin({});
  double now = 0;
  add_step(window, now, 1);
  EXPECT_DOUBLE_EQ(window.last().mfu.value(), 0.5);
  add_step(window, now, 0.1);  // 10 TFLOP/s
  EXPECT_NEAR(window.peak_tflops(), 10, 1e-12);
  EXPECT_DOUBLE_EQ(window.last().mfu.value(), 1);
  EXPECT_NEAR(window.means().mfu.value(), 2 / 1.1 / 10, 1e-12);
  window.restart();
  add_step(window, now, 0.2);
  EXPECT_NEAR(window.peak_tflops(), 10, 1e-12);
  EXPECT_NEAR(window.means().mfu.value(), 0.5, 1e-12);
}

TEST(LogWindowTest, KeepsGivenPeakWhenStepIsFaster) {
  LogWindow window({.tokens = 1, .flops = 1e12, .peak = {.tflops = 2, .source = Source::Config}});
  window.begin({});
  double now = 0;
  add_step(window, now, 0.1);
  EXPECT_DOUBLE_EQ(window.peak_tflops(), 2);
  EXPECT_DOUBLE_EQ(window.means().mfu.value(), 5);
}

TEST(DevicePeakTest, WarnsOnlyWhenStepsExceedPeak) {
  for (const Source source : {Source::Config, Source::DataSheet, Source::Measured}) {
    EXPECT_EQ(peak_warning({.tflops = 2, .source = source}, 2), "");
    EXPECT_THAT(peak_warning({.tflops = 2, .source = source}, 3),
                HasSubstr("steps reach 3.000 TFLOP/s on a device, above "));
  }
  EXPECT_THAT(peak_warning({.tflops = 2, .source = Source::Config}, 3),
              HasSubstr("logging.peak_tflops = 2.000: MFU is above 100 %"));
  EXPECT_THAT(peak_warning({.tflops = 2, .source = Source::Measured}, 3),
              HasSubstr("earlier MFU values were too high"));
}

TEST(DevicePeakTest, MeasuresOnRanksWithCoresOfTheirOwn) {
  CpuDevice one({.threads = 1}), two({.threads = 2});
  const auto measuring = [](int cores, Device& device) {
    int ranks = 0;
    while (ranks < 8 && measures_peak(ranks, cores, device)) ++ranks;
    for (int rank = ranks; rank < 8; ++rank) EXPECT_FALSE(measures_peak(rank, cores, device)) << rank;
    return ranks;
  };
  EXPECT_EQ(measuring(4, one), 4);
  EXPECT_EQ(measuring(4, two), 2);
  EXPECT_EQ(measuring(5, two), 2);
  EXPECT_EQ(measuring(1, two), 1) << "one rank measures even if its threads share cores";
  EXPECT_EQ(measuring(0, two), 8) << "no rank shares cores";
  MetaDevice other;
  EXPECT_EQ(measuring(1, other), 8) << "each rank has a device of its own";
}

TEST(PeakFileTest, StoresPeakOfDevice) {
  const test::ScratchFolder folder;
  const PeakFile file(folder.path().string(), "AVX2, 4 threads");
  EXPECT_EQ(file.read(), 0);
  file.write(1.25, Log());
  EXPECT_EQ(file.read(), 1.25);
  EXPECT_EQ(PeakFile(folder.path().string(), "AVX2, 2 threads").read(), 0);
  EXPECT_EQ(PeakFile("", "AVX2, 4 threads").read(), 0);
}

TEST(PeakFileTest, IgnoresDamagedFile) {
  const test::ScratchFolder folder;
  const PeakFile file(folder.path().string(), "a");
  for (const char* text :
       {"", "{", "[]", "{}", R"({"device": 1, "tflops": 1})", R"({"device": "a"})", R"({"device": "a", "tflops": "1"})",
        R"({"device": "a", "tflops": -1})", R"({"device": "a", "tflops": 1e999})"}) {
    write_file_atomic(folder / "measured_peak.json", text);
    EXPECT_EQ(file.read(), 0) << text;
  }
}

}  // namespace
}  // namespace mcpp
