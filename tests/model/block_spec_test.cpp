#include "model/config/block_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcpp {
namespace {

using ::testing::ElementsAre;

ModelConfig small_model() {
  ModelConfig config;
  config.num_layers = 6, config.hidden_size = 64, config.num_attention_heads = 4, config.num_query_groups = 2;
  config.ffn_hidden_size = 96;
  return config;
}

TEST(BlockSpecTest, HasSizesOfConfig) {
  const BlockSpec block = block_spec(small_model(), 5);
  ASSERT_NE(block.attention(), nullptr);
  EXPECT_EQ(*block.attention(), (AttentionSpec{.num_heads = 4, .num_query_groups = 2, .head_dim = 16}));
  ASSERT_NE(block.mlp(), nullptr);
  EXPECT_EQ(block.mlp()->ffn_hidden_size, 96);
  EXPECT_EQ(block.moe(), nullptr);
}

TEST(BlockSpecTest, HasExpertsInLayersOfMoeLayerFreq) {
  ModelConfig config = small_model();
  config.moe.num_experts = 8, config.moe.layer_freq = {2}, config.moe.shared_expert_intermediate_size = 32;
  EXPECT_THAT(layers_with_experts(config, 0, 6), ElementsAre(0, 2, 4));
  EXPECT_THAT(layers_with_experts(config, 1, 4), ElementsAre(2));
  const BlockSpec block = block_spec(config, 2);
  ASSERT_NE(block.moe(), nullptr);
  EXPECT_EQ(*block.moe(), (MoeSpec{.num_experts = 8, .ffn_hidden_size = 96, .shared_expert_intermediate_size = 32}));
}

TEST(BlockKindsTest, CountsLayersOfEachKind) {
  ModelConfig config = small_model();
  config.window_size = {7, 0}, config.window_attn_skip_freq = {3};
  const BlockKinds blocks(config);
  EXPECT_THAT(blocks.kind_of_layer, ElementsAre(0, 0, 1, 0, 0, 1));
  EXPECT_EQ(blocks.of_layer(0).attention()->window, 8);
  EXPECT_EQ(blocks.of_layer(2).attention()->window, 0);
  EXPECT_THAT(blocks.count(0, 6), ElementsAre(4, 2));
  EXPECT_THAT(blocks.count(2, 4), ElementsAre(1, 1));
}

TEST(DescribeBlocksTest, JoinsRunsAndPatterns) {
  ModelConfig config = small_model();
  EXPECT_EQ(describe_blocks(config), "6 x [attention gqa 4/2 | gelu 96]");
  config.position_embedding_type = PositionEmbedding::Rope, config.activation_func = ActivationFunction::SwiGLU;
  config.window_size = {7, 0}, config.window_attn_skip_freq = {3};
  EXPECT_EQ(describe_blocks(config),
            "2 x ([attention gqa 4/2 rope window 8 | swiglu 96] [attention gqa 4/2 rope window 8 | swiglu 96] "
            "[attention gqa 4/2 rope | swiglu 96])");
  config.window_size = {}, config.window_attn_skip_freq = {}, config.num_query_groups = 4;
  config.moe.num_experts = 8, config.moe.layer_freq = {0, 1, 1, 1, 1, 1};
  EXPECT_EQ(describe_blocks(config),
            "[attention 4 rope | swiglu 96], 5 x [attention 4 rope | 8 experts top 2 swiglu 96]");
}

}  // namespace
}  // namespace mcpp
