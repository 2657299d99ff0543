#include "tensor/profiler.h"

#include <gmock/gmock.h>

#include <thread>

#include "tensor/processor.h"

namespace mcpp {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::Pair;

std::vector<std::string> names_of(const Profiler::Trace& trace) {
  std::vector<std::string> names;
  for (const ProfiledRange& range : trace.ranges) names.push_back(range.name);
  return names;
}

void record_ranges(Profiler* profiler) {
  CpuDevice device;
  const ProfileRange phase(device, profiler, "phase", Detail::Phase);
  const TimedRange pass(profiler, "pass", Detail::Microbatch, {.microbatch = 3, .chunk = 1});
  const TimedRange layer(profiler, "layer", Detail::Layer);
}

TEST(ProfilerTest, RecordsNothingByDefault) {
  record_ranges(nullptr);
  Profiler profiler;
  EXPECT_FALSE(profiler.is_enabled(Detail::Phase));
  record_ranges(&profiler);
  EXPECT_TRUE(profiler.take_seconds().empty());
  EXPECT_TRUE(profiler.stop().ranges.empty());
}

TEST(ProfilerTest, TimersSumRangesOfTheirDetail) {
  Profiler profiler;
  profiler.enable_timers(Detail::Microbatch);
  for (int i = 0; i < 2; ++i) {
    const TimedRange pass(&profiler, "pass", Detail::Microbatch);
    std::this_thread::sleep_for(5ms);
  }
  record_ranges(&profiler);
  const std::map<std::string, double> seconds = profiler.take_seconds();
  EXPECT_EQ(seconds.size(), 2u);
  EXPECT_GE(seconds.at("pass"), 0.010);
  EXPECT_TRUE(seconds.contains("phase"));
  EXPECT_TRUE(profiler.take_seconds().empty());
  profiler.enable_timers(Detail::Phase);
  record_ranges(&profiler);
  EXPECT_THAT(profiler.take_seconds(), ElementsAre(Pair("phase", testing::Ge(0))));
}

TEST(ProfilerTest, TraceHasAllDetailsInOrderOfEnd) {
  Profiler profiler;
  profiler.start(nullptr);
  record_ranges(&profiler);
  const Profiler::Trace trace = profiler.stop();
  EXPECT_THAT(names_of(trace), ElementsAre("layer", "pass", "phase"));
  EXPECT_EQ(trace.ranges[1].info.microbatch, 3);
  for (std::size_t i = 1; i < trace.ranges.size(); ++i) {
    EXPECT_LE(trace.ranges[i].begin, trace.ranges[i - 1].begin);
    EXPECT_GE(trace.ranges[i].end, trace.ranges[i - 1].end);
  }
  record_ranges(&profiler);
  EXPECT_TRUE(profiler.stop().ranges.empty());
}

TEST(ProfilerTest, CountedRangesMatchTheirCounter) {
  Profiler profiler;
  profiler.start(nullptr);
  double seconds = 0;
  for (int i = 0; i < 3; ++i) {
    const CountedRange range(seconds, &profiler, "all_reduce", RangeKind::Communication, {.bytes = 8, .group = "tp"});
    std::this_thread::sleep_for(1ms);
  }
  double sum = 0;
  const Profiler::Trace trace = profiler.stop();
  for (const ProfiledRange& range : trace.ranges) sum += std::chrono::duration<double>(range.end - range.begin).count();
  EXPECT_THAT(names_of(trace), ElementsAre("tp all_reduce", "tp all_reduce", "tp all_reduce"));
  EXPECT_DOUBLE_EQ(sum, seconds);
  EXPECT_GE(seconds, 0.003);
}

TEST(ProfilerTest, CountsRangesBeyondCapacity) {
  Profiler profiler;
  profiler.start(nullptr);
  const auto now = Profiler::Clock::now();
  for (std::size_t i = 0; i < Profiler::kMaxRanges + 5; ++i) profiler.add("", Detail::Phase, RangeKind::Work, now, now);
  const Profiler::Trace trace = profiler.stop();
  EXPECT_EQ(trace.ranges.size(), Profiler::kMaxRanges);
  EXPECT_EQ(trace.dropped_ranges, 5);
}

/// Clock of a device that is one second behind the host.
class LateClock final : public DeviceClock {
 public:
  std::size_t mark() noexcept override {
    times.push_back(ProfiledRange::Clock::now() + 1s);
    return times.size() - 1;
  }
  ProfiledRange::Clock::time_point time_of(std::size_t mark) override { return times.at(mark); }
  std::vector<ProfiledRange::Clock::time_point> times;
};

TEST(ProfilerTest, RecordsHostAndDeviceRanges) {
  LateClock clock;
  Profiler profiler;
  profiler.start(&clock);
  record_ranges(&profiler);
  const Profiler::Trace trace = profiler.stop();
  EXPECT_THAT(names_of(trace), ElementsAre("layer", "pass", "phase", "layer", "pass", "phase"));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(trace.ranges[i].is_on_device);
    EXPECT_TRUE(trace.ranges[i + 3].is_on_device);
    EXPECT_GE(trace.ranges[i + 3].begin - trace.ranges[i].begin, 999ms);
  }
  EXPECT_EQ(clock.times.size(), 6u);
  record_ranges(&profiler);
  EXPECT_EQ(clock.times.size(), 6u);
}

TEST(ProfilerTest, KeepsMaximumOfTrace) {
  Profiler profiler;
  profiler.record_kept_bytes("layer", 9);  // no trace was requested
  profiler.start(nullptr);
  profiler.record_kept_bytes("layer", 3);
  profiler.record_kept_bytes("layer", 5);
  profiler.record_kept_bytes("layer", 4);
  profiler.record_kept_bytes("output", -1);
  EXPECT_EQ(profiler.stop().saved_bytes, (std::map<std::string, i64>{{"layer", 5}, {"output", -1}}));
  profiler.start(nullptr);
  EXPECT_TRUE(profiler.stop().saved_bytes.empty());
}

}  // namespace
}  // namespace mcpp
