// Ranges that the ranks of a layout record in a step, compared with their counters.
#include <gtest/gtest.h>

#include <set>

#include "megatron_cpp/monitor/rank_report.h"
#include "tests/support/four_layers.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

RunTask task_of(bool has_experts) {
  return test::four_layers(test::tiny_gpt2(), has_experts, 16);
}

struct TracedStep {
  Profiler::Trace trace;
  RankTimings timings;
  i64 bytes = 0;  ///< bytes that the rank sent according to its groups
  int chunks = 0;
};

TracedStep trace_step(LayoutRank& self) {
  const auto bytes = [&] {
    i64 sum = 0;
    for (const auto& [name, meter] : self.parallel().meters) sum += meter->total_bytes();
    return sum;
  };
  self.step(0);
  const i64 bytes_before = bytes();
  const RankTimings before = rank_timings(self.state(), self.parallel());
  self.profiler().start(nullptr);
  self.step(1);
  TracedStep traced{.trace = self.profiler().stop(), .timings = {}, .bytes = bytes() - bytes_before, .chunks = 0};
  traced.timings = rank_timings(self.state(), self.parallel()) - before;
  traced.chunks = static_cast<int>(self.state().chunks().size());
  return traced;
}

double seconds_of(const TracedStep& traced, RangeKind kind) {
  double seconds = 0;
  for (const ProfiledRange& range : traced.trace.ranges)
    if (range.kind == kind) seconds += std::chrono::duration<double>(range.end - range.begin).count();
  return seconds;
}

/// Returns the microbatches and chunks of ranges with these names.
std::set<std::pair<i64, i64>> passes(const TracedStep& traced, const std::set<std::string>& names) {
  std::set<std::pair<i64, i64>> found;
  for (const ProfiledRange& range : traced.trace.ranges) {
    if (!names.contains(range.name)) continue;
    EXPECT_TRUE(found.emplace(range.info.microbatch, range.info.chunk).second);
  }
  return found;
}

void expect_sums(const TracedStep& traced, const RunLayout& layout) {
  EXPECT_NEAR(seconds_of(traced, RangeKind::Communication), traced.timings.communication, 1e-9) << layout.name;
  EXPECT_NEAR(seconds_of(traced, RangeKind::Bubble), traced.timings.pipeline, 1e-9) << layout.name;
  EXPECT_GT(traced.timings.compute(), 0) << layout.name;
  i64 bytes = 0;
  for (const ProfiledRange& range : traced.trace.ranges) bytes += std::max<i64>(range.info.bytes, 0);
  EXPECT_EQ(bytes, traced.bytes) << layout.name;
  EXPECT_EQ(traced.trace.dropped_ranges, 0);
}

void expect_passes(const TracedStep& traced, const RunLayout& layout) {
  const auto microbatches = static_cast<i64>(16 / layout.dp);
  std::set<std::pair<i64, i64>> all;
  for (i64 m = 0; m < microbatches; ++m)
    for (int chunk = 0; chunk < traced.chunks; ++chunk) all.emplace(m, chunk);
  EXPECT_EQ(passes(traced, {"forward-compute"}), all) << layout.name;
  EXPECT_EQ(passes(traced, {"backward-compute", "backward-compute-input"}), all) << layout.name;
  const bool is_split = layout.schedule == ScheduleKind::ZbH1 || layout.schedule == ScheduleKind::ZbV;
  EXPECT_EQ(!passes(traced, {"backward-compute-weight"}).empty(), is_split) << layout.name;
}

/// Expects that each sublayer of this rank's layers is recorded in forward and backward of each microbatch.
void expect_layers(const TracedStep& traced, const RunLayout& layout) {
  std::map<std::string, i64> count;
  for (const ProfiledRange& range : traced.trace.ranges)
    if (range.name.starts_with("decoder.layers.")) ++count[range.name];
  EXPECT_EQ(count.size(), static_cast<std::size_t>(2 * 4 / layout.pp)) << layout.name;
  for (const auto& [name, times] : count) EXPECT_EQ(times, 2 * 16 / layout.dp) << name << " " << layout.name;
  std::set<std::string> phases;
  for (const ProfiledRange& range : traced.trace.ranges) phases.insert(range.name);
  for (const char* phase : {"forward-backward", "all-grads-sync", "optimizer", "optimizer-inner-step"})
    EXPECT_TRUE(phases.contains(phase)) << phase;
}

TEST(ProfilerLayoutsTest, SumsOfRangesMatchCounters) {
  const std::vector<RunLayout> layouts{
      {"one", {}},
      {"tp2 sp", {.tp = 2, .sequence_parallel = true}},
      {"pp2", {.pp = 2}},
      {"pp2 interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
      {"pp2 zb-h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}},
      {"dp2 zero3", {.dp = 2, .zero_stage = 3}},
      {"cp2", {.cp = 2}},
      {"tp2 pp2 dp2", {.tp = 2, .pp = 2, .dp = 2}}};
  for (const RunLayout& layout : layouts) {
    const RunTask task = task_of(false);
    run_local_ranks(layout.ranks(), [&](Communicator& world, int) {
      LayoutRank self(task, layout, world);
      const TracedStep traced = trace_step(self);
      expect_sums(traced, layout);
      expect_passes(traced, layout);
      expect_layers(traced, layout);
    });
  }
}

TEST(ProfilerLayoutsTest, RecordsTokenExchangeOfExperts) {
  const RunTask task = task_of(true);
  const RunLayout layout{"ep2 dp2", {.dp = 2, .ep = 2}};
  run_local_ranks(layout.ranks(), [&](Communicator& world, int) {
    LayoutRank self(task, layout, world);
    const TracedStep traced = trace_step(self);
    expect_sums(traced, layout);
    i64 exchanges = 0;
    for (const ProfiledRange& range : traced.trace.ranges) exchanges += range.name == "ep all_to_all";
    EXPECT_GT(exchanges, 0);
  });
}

}  // namespace
}  // namespace mcpp
