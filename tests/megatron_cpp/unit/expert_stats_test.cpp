// What a training tells about its experts.
#include "megatron_cpp/monitor/expert_stats.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace mcpp {
namespace {

LayerRoutingStats tally_of(i64 layer, std::vector<double> tokens, double dropped = 0) {
  return {.layer = layer, .tally = {.tokens = std::move(tokens), .dropped = dropped, .balance_loss = 30, .z_loss = 5}};
}

TEST(ExpertStats, AreOfEachLayerAndOfAll) {
  const std::vector<ExpertLayerStats> layers =
      expert_stats({tally_of(1, {6, 2, 0, 12}, 4), tally_of(3, {5, 5, 5, 5})}, 10);
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

TEST(ExpertStats, AreNothingOfAStepThatWasGivenUp) {
  EXPECT_TRUE(expert_stats({tally_of(0, {0, 0})}, 10).empty());
  EXPECT_TRUE(expert_stats({}, 10).empty());
}

TEST(IdleExpertDetector, AreNamedOnceEachTime) {
  IdleExpertDetector idle(3);
  const std::vector<LayerRoutingStats> busy{tally_of(0, {1, 1}), tally_of(2, {1, 1})},
      lazy{tally_of(0, {1, 1}), tally_of(2, {2, 0})};
  EXPECT_TRUE(idle.add(lazy).empty());
  EXPECT_TRUE(idle.add(lazy).empty());
  const std::vector<std::string> warnings = idle.add(lazy);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_CONTAINS(warnings[0], "expert 1 of layer 2 has got no token for 3 iterations");
  EXPECT_TRUE(idle.add(lazy).empty()) << "said already";
  EXPECT_TRUE(idle.add(busy).empty());
  for (int step = 0; step < 2; ++step) EXPECT_TRUE(idle.add(lazy).empty()) << "counted from the start";
  EXPECT_EQ(idle.add(lazy).size(), 1u);
}

}  // namespace
}  // namespace mcpp
