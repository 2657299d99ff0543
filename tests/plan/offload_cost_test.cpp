// Additional time of a step when part of its data is offloaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/layer_memory.h"
#include "plan/step/step_time.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

/// Unlimited links; a host at 10 GB/s with a disk.
Hardware hardware_with(double disk) {
  Hardware hardware = test::toy_cluster(1e12, 1e12);
  hardware.host = {.memory = 1000, .memory_bandwidth = 50, .link_bandwidth = 10, .nvme_bandwidth = disk};
  return hardware;
}

const Workload kWork = test::toy_workload(16, 2048, 16, 32);

StepTime step(const Hardware& hardware, const Layout& layout) {
  const KernelTraits program;
  return step_time({hardware, program, kWork, layout});
}

WeightCounts weight_counts(const Layout& layout) {
  const Hardware hardware = hardware_with(5);
  const KernelTraits program;
  return WeightCounts({hardware, program, kWork, layout});
}

// Everything that layers save crosses the link twice for each of 4 microbatches; a fast disk works in parallel.
TEST(OffloadCostTest, ActivationsCrossLinkTwice) {
  const Layout resident{.dp = 4, .micro_batch_size = 2};
  Layout host = resident, disk = resident;
  host.activations_tier = OffloadTier::Host;
  disk.activations_tier = OffloadTier::File;
  const auto saved_bytes =
      static_cast<double>(LayerSizes(kWork.model, activation_setup(resident, kWork.dtype)).layer(0).saved);
  const double moved = 4 * 2 * 16 * saved_bytes;
  EXPECT_EQ(step(hardware_with(5), resident).work.offloaded, 0);
  EXPECT_NEAR(step(hardware_with(5), host).work.offloaded / (moved / 10e9), 1, 1e-9);
  EXPECT_NEAR(step(hardware_with(1e6), disk).work.offloaded / (moved / 10e9 + moved / 50e9), 1,
              1e-9);  // plus checksums
  // A slow disk is hidden only by the time of the passes themselves.
  const StepTime slow = step(hardware_with(0.5), disk);
  EXPECT_NEAR(slow.work.total() / (moved / 0.5e9), 1, 1e-9);
}

TEST(OffloadCostTest, RecomputedLayersOffloadTheirInputsOnly) {
  const Recompute full{.granularity = Recompute::Granularity::Full};
  const Layout layout{.recompute = full, .activations_tier = OffloadTier::Host};
  const double input = 2048 * 2048 * 2;
  EXPECT_NEAR(step(hardware_with(5), layout).work.offloaded / (32 * 2 * 16 * input / 10e9), 1, 0.01);
}

// Each rank fetches 2 bytes per element of its shard for each pass of each microbatch.
TEST(OffloadCostTest, WeightsAreFetchedForEachGather) {
  Layout layout{.dp = 8, .zero_stage = 3};
  const StepTime resident = step(hardware_with(5), layout);
  layout.params_tier = OffloadTier::Host;
  const StepTime host = step(hardware_with(5), layout);
  const WeightCounts weights = weight_counts(layout);
  const double part =
      weights.stage_weights({.first_layer = 0, .end_layer = 16, .has_embedding = true, .has_output = true}).all / 8;
  const double fetched_weights = 2 * part + weights.vocabulary() / 8;  // the output layer's weights once more
  EXPECT_NEAR(host.work.offloaded / (4 * 2 * fetched_weights / 10e9), 1, 1e-9);
  EXPECT_NEAR((host.optimizer - resident.optimizer) / (2 * part / 10e9), 1, 1e-9);
  layout.params_tier = OffloadTier::File;
  const StepTime disk = step(hardware_with(0.01), layout);
  EXPECT_GT(disk.work.total(), 0.999 * 4 * 2 * 2 * part / 0.01e9);
  EXPECT_NEAR((disk.optimizer - resident.optimizer) / (2 * part / 10e9 + 4 * part / 0.01e9), 1, 1e-9);
  // If there is a secondary shard within full nodes, weights are fetched from that copy.
  layout.dp = 16, layout.node_ranks = 8;
  EXPECT_EQ(step(hardware_with(5), layout).work.offloaded, 0);
}

// On CPUs, updating offloaded states takes the usual time plus the copies of gradients and weights.
TEST(OffloadCostTest, CpuUpdateAddsCopiesOnly) {
  Hardware hardware = hardware_with(5);
  hardware.host = {.memory = 100, .nvme_bandwidth = 1e6};
  Layout layout;
  const double resident = step(hardware, layout).optimizer;
  const WeightCounts weights = weight_counts(layout);
  const double all =
      weights.stage_weights({.first_layer = 0, .end_layer = 16, .has_embedding = true, .has_output = true}).all;
  layout.states_tier = OffloadTier::Host;
  const double copies = hardware.traffic_seconds(2 * (4 + 2 * 2) * all);
  EXPECT_NEAR((step(hardware, layout).optimizer - resident) / copies, 1, 1e-6);
  layout.states_tier = OffloadTier::File;
  const double checksums = hardware.traffic_seconds(2 * 12 * all);
  EXPECT_NEAR((step(hardware, layout).optimizer - resident) / (copies + checksums), 1, 1e-6);
  layout.offloaded_state_fraction = 0.25;
  EXPECT_NEAR((step(hardware, layout).optimizer - resident) / (copies + checksums), 0.25, 1e-6);
}

TEST(OffloadCostTest, RequiresDiskBandwidth) {
  Hardware hardware = hardware_with(0);
  const Layout disk{.activations_tier = OffloadTier::File};
  EXPECT_THAT(missing_rates(hardware, disk),
              testing::ElementsAre(testing::HasSubstr("host.nvme_bandwidth: is unknown for test")));
  EXPECT_THAT(missing_rates(hardware, {.activations_tier = OffloadTier::Host}), testing::IsEmpty());
  hardware.host.nvme_bandwidth = 3;
  EXPECT_THAT(missing_rates(hardware, disk), testing::IsEmpty());
}

// On CPUs the device is the host: offloading copies within its memory.
TEST(OffloadCostTest, CpuOffloadUsesMemoryBandwidth) {
  Hardware hardware = hardware_with(5);
  hardware.host = {.memory = 100};
  const Layout layout{.activations_tier = OffloadTier::Host};
  const auto saved_bytes =
      static_cast<double>(LayerSizes(kWork.model, activation_setup(layout, kWork.dtype)).layer(0).saved);
  EXPECT_NEAR(step(hardware, layout).work.offloaded / hardware.traffic_seconds(32 * 2 * 16 * 2 * saved_bytes), 1, 1e-9);
}

}  // namespace
}  // namespace mcpp
