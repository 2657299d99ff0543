// What a step is predicted to take, where it must follow from simpler things.
#include "plan/step_time.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

/// Links as fast as wished for, so that what is left is work.
Hardware hardware_with(double link_bandwidth) {
  Hardware hardware;
  hardware.device = {.name = "test",
                     .bf16_peak = 300,
                     .bf16_attained = 250,
                     .fp32_peak = 20,
                     .fp32_attained = 18,
                     .attention_attained = 200,
                     .cores = 100,
                     .memory = 80,
                     .memory_bandwidth = 2000,
                     .memory_attained = 1800};
  hardware.links = {.tier = {"near", "far"},
                    .ranks = {8, 1024},
                    .bandwidth = {link_bandwidth, link_bandwidth},
                    .attained = {1, 1},
                    .latency = {0, 0}};
  return hardware;
}

Workload work_of(i64 batch) {
  Workload work;
  work.model.num_layers = 16;
  work.model.hidden_size = 2048;
  work.model.num_attention_heads = 16;
  work.model.seq_length = 2048;
  work.model.vocab_size = 32000;
  work.global_batch_size = batch;
  return work;
}

double seconds(const Hardware& hardware, const Workload& work, const Layout& layout) {
  const Implementation program;
  return step_time({hardware, program, work, layout}).seconds;
}

TEST(StepTime, PartsAddUp) {
  const Hardware hardware = hardware_with(50);
  const Workload work = work_of(64);
  const Implementation program;
  for (const Layout& layout : {Layout{.world_size = 8, .zero_stage = 3},
                               Layout{.world_size = 16, .tp = 4, .pp = 2, .sequence_parallel = true, .zero_stage = 1},
                               Layout{.world_size = 8, .cp = 2, .pp = 4}}) {
    const StepTime t = step_time({hardware, program, work, layout});
    EXPECT_NEAR(t.seconds, t.work.total() + t.bubble + t.messages + t.data_parallel + t.optimizer, 1e-12);
    for (const double part :
         {t.work.products, t.work.attention, t.work.elementwise, t.bubble, t.messages, t.data_parallel, t.optimizer})
      EXPECT_GE(part, 0) << layout.describe();
    EXPECT_LE(least_seconds({hardware, program, work, layout}), t.seconds) << layout.describe();
  }
}

// More ranks of the same kind of work, free communication: half the time.
TEST(StepTime, DataParallelismHalvesTheWork) {
  const Hardware hardware = hardware_with(1e12);
  const double one = seconds(hardware, work_of(64), {.world_size = 1});
  const double two = seconds(hardware, work_of(64), {.world_size = 2});
  EXPECT_NEAR(two / one, 0.5, 0.02);  // the update is not shared
}

TEST(StepTime, SlowLinksCost) {
  const Workload work = work_of(64);
  for (const Layout& layout : {Layout{.world_size = 8, .tp = 8}, Layout{.world_size = 8, .zero_stage = 3},
                               Layout{.world_size = 8, .cp = 8}, Layout{.world_size = 8, .pp = 8}})
    EXPECT_GT(seconds(hardware_with(1), work, layout), seconds(hardware_with(100), work, layout)) << layout.describe();
}

// A long step is not simulated to its end, but must take what it would.
TEST(StepTime, LongStepsFollowFromShortOnes) {
  const Hardware hardware = hardware_with(50);
  for (const auto& [kind, chunks] : {std::pair<ScheduleKind, i64>{ScheduleKind::OneFOneB, 1},
                                     {ScheduleKind::Interleaved, 2},
                                     {ScheduleKind::ZbH1, 1},
                                     {ScheduleKind::ZbV, 2}}) {
    const Layout layout{.world_size = 4, .pp = 4, .schedule = kind, .chunks = chunks};
    // Up to 20 microbatches are simulated; from 40 on a step of twice as many takes what 20 more do, times as many.
    const double a = seconds(hardware, work_of(16), layout), b = seconds(hardware, work_of(20), layout),
                 c = seconds(hardware, work_of(200), layout);
    EXPECT_NEAR(c / (b + (b - a) * 45), 1, 0.01) << layout.describe();
  }
}

TEST(StepTime, RecomputationAddsAForward) {
  const Hardware hardware = hardware_with(1e12);
  const Workload work = work_of(8);
  const Layout none{.world_size = 1}, full{.world_size = 1, .recompute = {.granularity = Recompute::Granularity::Full}};
  const Implementation program;
  const double forward = layer_time({hardware, program, work, none}).forward.total();
  EXPECT_NEAR(seconds(hardware, work, full) - seconds(hardware, work, none), 8 * 16 * forward, 1e-9);
}

}  // namespace
}  // namespace mcpp
