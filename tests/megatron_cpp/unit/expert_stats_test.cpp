// Statistics of experts in a run.
#include <gtest/gtest.h>

#include "megatron_cpp/monitor/statistics.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

LayerRoutingStats routing_stats(i64 layer, std::vector<double> tokens, double dropped = 0) {
  return {.layer = layer, .tally = {.tokens = std::move(tokens), .dropped = dropped, .balance_loss = 30, .z_loss = 5}};
}

TEST(ExpertStatsTest, SummarizeEachLayerAndAllLayers) {
  const std::vector<ExpertLayerStats> layers =
      expert_stats({routing_stats(1, {6, 2, 0, 12}, 4), routing_stats(3, {5, 5, 5, 5})}, 10);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].layer, 1);
  EXPECT_DOUBLE_EQ(layers[0].max_load, 12 / 5.0);
  EXPECT_DOUBLE_EQ(layers[0].dropped, 0.2);
  EXPECT_DOUBLE_EQ(layers[0].balance_loss, 3);
  EXPECT_DOUBLE_EQ(layers[0].z_loss, 0.5);
  const ExpertLayerStats all = summarize(layers);
  EXPECT_DOUBLE_EQ(all.max_load, 12 / 5.0);
  EXPECT_DOUBLE_EQ(all.dropped, 0.1);
  EXPECT_DOUBLE_EQ(all.balance_loss, 3);
}

TEST(ExpertStatsTest, AreEmptyForAbortedStep) {
  EXPECT_TRUE(expert_stats({routing_stats(0, {0, 0})}, 10).empty());
  EXPECT_TRUE(expert_stats({}, 10).empty());
}

TEST(IdleExpertDetectorTest, WarnsOncePerIdlePeriod) {
  IdleExpertDetector idle(3);
  const std::vector<LayerRoutingStats> used{routing_stats(0, {1, 1}), routing_stats(2, {1, 1})},
      unused{routing_stats(0, {1, 1}), routing_stats(2, {2, 0})};
  EXPECT_TRUE(idle.add(unused).empty());
  EXPECT_TRUE(idle.add(unused).empty());
  const std::vector<std::string> warnings = idle.add(unused);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_CONTAINS(warnings[0], "expert 1 of layer 2 has received no tokens for 3 iterations");
  EXPECT_TRUE(idle.add(unused).empty()) << "reported already";
  EXPECT_TRUE(idle.add(used).empty());
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(idle.add(unused).empty()) << "the count restarts";
  EXPECT_EQ(idle.add(unused).size(), 1u);
}

}  // namespace
}  // namespace mcpp
