// Predicted times of collectives and GEMMs against values computed by hand.
#include "plan/cost/collectives.h"

#include <gtest/gtest.h>

#include "plan/cost/kernel_times.h"

namespace mcpp {
namespace {

/// Nodes of 4 at 100 GB/s, connected at 10 GB/s, without losses.
Hardware two_tiers() {
  Hardware hardware;
  hardware.device = {.name = "test",
                     .bf16_peak = 100,
                     .bf16_attained = 100,
                     .fp32_peak = 10,
                     .fp32_attained = 10,
                     .attention_attained = 50,
                     .cores = 10,
                     .memory = 16,
                     .memory_bandwidth = 1000,
                     .memory_attained = 1000};
  hardware.links = {
      .tier = {"near", "far"}, .ranks = {4, 64}, .bandwidth = {100, 10}, .attained = {1, 1}, .latency = {0, 0}};
  return hardware;
}

constexpr double kStart = 8.4e-6;
constexpr double kBytes = 8e9;

TEST(CollectivesTest, SplitsVolumeByTier) {
  const Hardware hardware = two_tiers();
  const Collectives c(hardware);
  EXPECT_EQ(c.all_gather(kBytes, {.ranks = 1}), 0);
  EXPECT_NEAR(c.all_gather(kBytes, {.ranks = 4}), kStart + 3.0 / 4 * kBytes / 100e9, 1e-12);
  EXPECT_NEAR(c.all_reduce(kBytes, {.ranks = 4}), kStart + 2 * 3.0 / 4 * kBytes / 100e9, 1e-12);
  // One rank per node: all traffic crosses the inter-node links.
  EXPECT_NEAR(c.all_gather(kBytes, {.ranks = 8, .stride = 4}), kStart + 7.0 / 8 * kBytes / 10e9, 1e-12);
  // All ranks of four nodes: each sends a quarter over the inter-node links, as the adapters of a node work in
  // parallel.
  EXPECT_NEAR(c.all_gather(kBytes, {.ranks = 16}), kStart + 3.0 / 4 * kBytes / 100e9 + 3.0 / 4 * kBytes / 4 / 10e9,
              1e-12);
  // Half of the data that one of 8 ranks sends goes to the other node.
  EXPECT_NEAR(c.all_to_all(kBytes, {.ranks = 8}), kStart + 3.0 / 8 * kBytes / 100e9 + 4.0 / 8 * kBytes / 10e9, 1e-12);
  EXPECT_NEAR(c.message(kBytes, 1), kBytes / 100e9, 1e-12);
  EXPECT_NEAR(c.message(kBytes, 4), kBytes / 10e9, 1e-12);
  EXPECT_EQ(c.outermost_tier({.ranks = 4}), "near");
  EXPECT_EQ(c.outermost_tier({.ranks = 2, .stride = 4}), "far");
}

TEST(CollectivesTest, AddsLatencyOfRingsAndTrees) {
  Hardware hardware = two_tiers();
  hardware.links.latency = {1, 10};  // us
  const Collectives c(hardware);
  // A ring over 16 ranks in 4 nodes has 4 inter-node and 12 intra-node steps.
  EXPECT_NEAR(c.all_gather(1, {.ranks = 16}), kStart + 12e-6 + 40e-6, 1e-9);
  // The tree of an all-reduce has two intra-node and two inter-node steps, each twice as long as in a ring, up and
  // down.
  EXPECT_NEAR(c.all_reduce(1, {.ranks = 16}), kStart + 2 * (4e-6 + 40e-6), 1e-9);
}

TEST(GemmSecondsTest, LargeShapesReachAttainedRate) {
  const Hardware hardware = two_tiers();
  const MatmulShape shape{.m = 12800, .n = 25600, .k = 8192};  // 100 x 100 tiles on 10 cores
  const double rate = shape.flops() / gemm_seconds(hardware, GemmType::Bf16, shape, 2);
  EXPECT_LT(rate, 100e12);
  EXPECT_GT(rate, 80e12);
}

TEST(GemmSecondsTest, SmallShapesAreBoundByTilesOrBytes) {
  Hardware hardware = two_tiers();
  // Eleven tiles take two waves of ten.
  const auto seconds = [&](i64 m, i64 n, i64 k) {
    return gemm_seconds(hardware, GemmType::Bf16, {.m = m, .n = n, .k = k}, 2);
  };
  EXPECT_GT(seconds(128 * 11, 256, 512), 1.3 * seconds(128 * 10, 256, 512));
  // A vector times a matrix takes the time to read the matrix.
  hardware.device.memory_attained = 100;
  EXPECT_NEAR(seconds(1, 65536, 65536), 2.0 * 65536 * 65536 / 100e9, 1e-3);
}

TEST(HardwareTest, SlowestGrowsWithDeviceCount) {
  Hardware hardware = two_tiers();
  EXPECT_EQ(hardware.slowest_device_factor(1000), 1);
  hardware.device.speed_spread = 0.02;
  EXPECT_EQ(hardware.slowest_device_factor(1), 1);
  // Expected maximum of n normal values: 1.42 standard deviations for 8, 3.24 for 1000.
  EXPECT_NEAR(hardware.slowest_device_factor(8), 1 + 0.02 * 1.42, 0.003);
  EXPECT_NEAR(hardware.slowest_device_factor(1000), 1 + 0.02 * 3.24, 0.003);
}

}  // namespace
}  // namespace mcpp
