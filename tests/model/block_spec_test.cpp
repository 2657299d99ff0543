#include "model/config/block_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace mcpp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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

TEST(BlockSpecTest, ReadsSizesFromLists) {
  ModelConfig config = small_model();
  config.num_layers = 3, config.kv_channels = 16;
  config.num_attention_heads = PerLayer<i64>({4, 8, 4});
  config.num_query_groups = PerLayer<i64>({2, 8, 1});
  config.ffn_hidden_size = PerLayer<i64>({96, 64, 32});
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(*block_spec(config, 1).attention(), (AttentionSpec{.num_heads = 8, .num_query_groups = 8, .head_dim = 16}));
  EXPECT_EQ(*block_spec(config, 2).attention(), (AttentionSpec{.num_heads = 4, .num_query_groups = 1, .head_dim = 16}));
  EXPECT_EQ(block_spec(config, 2).mlp()->ffn_hidden_size, 32);
}

TEST(BlockSpecTest, OmitsRopeInLayersOfNoRopeFreq) {
  ModelConfig config = small_model();
  config.position_embedding_type = PositionEmbedding::Rope, config.no_rope_freq = {4};
  const auto rope = [&](i64 layer) { return block_spec(config, layer).attention()->rope; };
  EXPECT_EQ(rope(2), RotaryKind::Global);
  EXPECT_EQ(rope(3), RotaryKind::None);
  config.no_rope_freq = {1, 0, 0, 0, 0, 1};
  EXPECT_EQ(rope(0), RotaryKind::None);
  EXPECT_EQ(rope(3), RotaryKind::Global);
  EXPECT_EQ(describe_blocks(config),
            "[attention gqa 4/2 nope | gelu 96], 4 x [attention gqa 4/2 rope | gelu 96], "
            "[attention gqa 4/2 nope | gelu 96]");
}

ModelConfig latent_model() {
  ModelConfig config = small_model();
  config.num_query_groups = 0, config.position_embedding_type = PositionEmbedding::Rope;
  config.mla = {.is_used = true,
                .q_lora_rank = 48,
                .kv_lora_rank = 32,
                .qk_head_dim = 12,
                .qk_pos_emb_head_dim = 6,
                .v_head_dim = 24};
  return config;
}

TEST(BlockSpecTest, HasLatentAttentionWithMultiLatentAttention) {
  ModelConfig config = latent_model();
  config.no_rope_freq = {6}, config.num_attention_heads = PerLayer<i64>({4, 4, 4, 4, 4, 3});
  EXPECT_THAT(config.conflicts(), IsEmpty());
  const BlockSpec block = block_spec(config, 5);
  EXPECT_EQ(block.attention(), nullptr);
  ASSERT_NE(block.latent_attention(), nullptr);
  EXPECT_TRUE(block.has_mixer());
  EXPECT_EQ(*block.latent_attention(), (MultiLatentAttentionSpec{.num_heads = 3,
                                                                 .q_lora_rank = 48,
                                                                 .kv_lora_rank = 32,
                                                                 .qk_head_dim = 12,
                                                                 .qk_pos_emb_head_dim = 6,
                                                                 .v_head_dim = 24}));
  EXPECT_EQ(*block.core_attention(), (AttentionSpec{.num_heads = 3, .num_query_groups = 3, .head_dim = 24}));
  EXPECT_EQ(block_spec(config, 0).latent_attention()->rope, RotaryKind::Global);
  EXPECT_EQ(config.rotary_dim(), 6);
  EXPECT_DOUBLE_EQ(config.softmax_scale(), 1 / std::sqrt(18.0));
  EXPECT_EQ(describe_blocks(config),
            "5 x [multi-latent attention 4 heads, latents 48/32 rope | gelu 96], "
            "[multi-latent attention 3 heads, latents 48/32 nope | gelu 96]");
}

TEST(BlockSpecTest, LatentAttentionMultipliesScoresBySquareOfYarnFactor) {
  ModelConfig config = latent_model();
  config.rope_scaling = {.type = RopeScalingType::Yarn, .factor = 40, .mscale = 0.707, .mscale_all_dim = 0.707};
  const double magnitude = 0.1 * 0.707 * std::log(40) + 1;
  EXPECT_DOUBLE_EQ(config.softmax_scale(), magnitude * magnitude / std::sqrt(18.0));
  EXPECT_DOUBLE_EQ(config.rope_scaling.magnitude(), 1);
  config.rope_scaling.mscale = config.rope_scaling.mscale_all_dim = 0;
  EXPECT_DOUBLE_EQ(config.softmax_scale(), 1 / std::sqrt(18.0));
}

TEST(BlockSpecTest, LatentAttentionRejectsKeysOfOtherAttention) {
  ModelConfig config = latent_model();
  config.num_query_groups = 4, config.kv_channels = 24;  // as in a resolved configuration
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.position_embedding_type = PositionEmbedding::LearnedAbsolute;
  config.mla.qk_pos_emb_head_dim = 5;
  config.rotary_percent = 0.5;
  config.kv_channels = 16, config.num_query_groups = 2;
  config.qk_layernorm = config.add_qkv_bias = true;
  config.attention_output_gate = {1};
  EXPECT_THAT(
      config.conflicts(),
      UnorderedElementsAre(HasSubstr("model.position_embedding_type: with multi_latent_attention must be \"rope\" or "
                                     "\"none\", not \"learned_absolute\""),
                           HasSubstr("model.qk_pos_emb_head_dim: with multi_latent_attention must be even"),
                           HasSubstr("model.rotary_percent: with multi_latent_attention must be 1"),
                           HasSubstr("model.rotary_percent: only read when"),
                           HasSubstr("model.kv_channels: with multi_latent_attention is not read; set qk_head_dim"),
                           HasSubstr("model.num_query_groups: with multi_latent_attention each head has its own key"),
                           HasSubstr("model.qk_layernorm: with multi_latent_attention is not read"),
                           HasSubstr("model.attention_output_gate: with multi_latent_attention must be []"),
                           HasSubstr("model.add_qkv_bias: with multi_latent_attention must be false")));
  config = latent_model(), config.mla.is_used = false;
  EXPECT_THAT(config.conflicts(),
              UnorderedElementsAre("model.q_lora_rank: only read when multi_latent_attention is true",
                                   "model.kv_lora_rank: only read when multi_latent_attention is true",
                                   "model.qk_head_dim: only read when multi_latent_attention is true",
                                   "model.qk_pos_emb_head_dim: only read when multi_latent_attention is true",
                                   "model.v_head_dim: only read when multi_latent_attention is true"));
}

TEST(BlockSpecTest, HasGateInLayersOfAttentionOutputGate) {
  ModelConfig config = small_model();
  config.attention_output_gate = {3};
  EXPECT_THAT(config.conflicts(), IsEmpty());
  const BlockKinds blocks(config);
  EXPECT_THAT(blocks.kind_of_layer, ElementsAre(0, 0, 1, 0, 0, 1));
  EXPECT_FALSE(blocks.of_layer(1).attention()->has_output_gate);
  EXPECT_TRUE(blocks.of_layer(2).attention()->has_output_gate);
  config.attention_output_gate = {1, 1, 1, 0, 0, 0};
  EXPECT_EQ(describe_blocks(config),
            "3 x [attention gqa 4/2 output gate | gelu 96], 3 x [attention gqa 4/2 | gelu 96]");
  config.attention_output_gate = {1, 0};
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.attention_output_gate: has 2 values; must have one")));
}

TEST(BlockSpecTest, DistinguishesLayersWithAndWithoutRope) {
  ModelConfig config = small_model();
  config.position_embedding_type = PositionEmbedding::Rope, config.no_rope_freq = {3};
  config.attention_chunk_size = 8, config.qk_l2_norm = config.attn_temperature_tuning = true;
  config.softmax_type = SoftmaxType::OffByOne;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(describe_blocks(config),
            "2 x ([attention gqa 4/2 rope chunk 8 qk l2 norm softmax off-by-one | gelu 96] "
            "[attention gqa 4/2 rope chunk 8 qk l2 norm softmax off-by-one | gelu 96] "
            "[attention gqa 4/2 nope temperature softmax off-by-one | gelu 96])");
  EXPECT_EQ(BlockKinds(config).kinds.size(), 2u);
}

TEST(BlockSpecTest, RejectsKeysThatNoLayerReads) {
  ModelConfig config = small_model();
  config.attention_chunk_size = 8, config.qk_l2_norm = true;
  EXPECT_THAT(config.conflicts(),
              ElementsAre(HasSubstr("model.attention_chunk_size: only read when position_embedding_type is \"rope\""),
                          HasSubstr("model.qk_l2_norm: only read when position_embedding_type is \"rope\"")));
  config = small_model();
  config.position_embedding_type = PositionEmbedding::Rope, config.attn_temperature_tuning = true;
  config.attention_chunk_size = 8, config.window_size = {3, 0};
  EXPECT_THAT(config.conflicts(),
              ElementsAre(HasSubstr("model.attention_chunk_size: excludes window_size"),
                          HasSubstr("model.attn_temperature_tuning: only read in layers without RoPE")));
  config = small_model();
  config.attn_temperature_scale = 0.2, config.activation_func_clamp_value = 7, config.glu_linear_offset = 1;
  EXPECT_THAT(config.conflicts(),
              ElementsAre(HasSubstr("model.attn_temperature_scale: only read when attn_temperature_tuning is true"),
                          HasSubstr("model.activation_func_clamp_value: only read when activation_func is \"swiglu\""),
                          HasSubstr("model.glu_linear_offset: only read when activation_func is \"swiglu\"")));
  config = small_model();
  config.moe.num_experts = 4, config.moe.apply_probs_on_input = true;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.moe_apply_probs_on_input: needs moe_router_topk = 1")));
}

TEST(BlockSpecTest, HasOneBranchPerCharacterOfPattern) {
  ModelConfig config = small_model();
  config.hybrid_layer_pattern = "*-E*-E", config.moe.num_experts = 4;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_TRUE(block_spec(config, 0).attention() && !block_spec(config, 0).has_feed_forward());
  EXPECT_TRUE(block_spec(config, 1).mlp() && !block_spec(config, 1).has_mixer());
  EXPECT_TRUE(block_spec(config, 5).moe() && !block_spec(config, 5).has_mixer());
  EXPECT_EQ(describe_blocks(config), "2 x ([attention gqa 4/2] [gelu 96] [4 experts top 2 gelu 96])");
  EXPECT_EQ(count_branches(config), 6);
  EXPECT_EQ(count_branches(small_model()), 12);
}

TEST(BlockSpecTest, HasRecurrentMixers) {
  ModelConfig config = small_model();
  config.recurrent.linear_attention_freq = {3};
  config.recurrent.linear_num_key_heads = 2, config.recurrent.linear_num_value_heads = 4;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(
      block_spec(config, 1).recurrent()->shape,
      (ScanShape{.rule = ScanRule::DeltaRule, .groups = 2, .heads_per_group = 2, .key_dim = 128, .value_dim = 128}));
  EXPECT_TRUE(block_spec(config, 1).mlp());
  EXPECT_TRUE(block_spec(config, 2).attention());
  EXPECT_THAT(BlockKinds(config).count(0, 6), ElementsAre(4, 2));
  EXPECT_EQ(model_sizes(config).linear_num_key_heads, 2);
  config.recurrent = {};
  config.hybrid_layer_pattern = "MG*-M-";
  config.recurrent.mamba_num_groups = 2, config.recurrent.mamba_head_dim = 16;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(block_spec(config, 0).recurrent()->shape.heads(), 2 * config.hidden_size / 16);
  EXPECT_FALSE(block_spec(config, 0).has_feed_forward());
  EXPECT_FALSE(block_spec(config, 1).recurrent()->is_mamba());
  EXPECT_EQ(model_sizes(config).mamba_num_groups, 2);
}

TEST(BlockSpecTest, HasKimiDeltaAttention) {
  ModelConfig config = small_model();
  config.recurrent.linear_attention_freq = {3};
  config.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
  config.recurrent.linear_num_key_heads = config.recurrent.linear_num_value_heads = 4;
  config.recurrent.linear_key_head_dim = 16, config.recurrent.linear_value_head_dim = 8;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  const RecurrentSpec spec = *block_spec(config, 0).recurrent();
  EXPECT_TRUE(spec.shape.decays_channels());
  EXPECT_EQ(spec.shape.decays(), 4 * 16);
  EXPECT_THAT(spec.projection_widths(), ElementsAre(16 + 16 + 8 + 1, 8, 16));
  EXPECT_EQ(spec.shape.width(), 16 + 16 + 8 + 1 + 8 + 16);
  EXPECT_THAT(describe_blocks(config), HasSubstr("kimi delta attention 4/4 state 16 x 8"));
  config.recurrent.linear_attention_freq = {};
  config.hybrid_layer_pattern = "GK*-K-";
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.linear_attention_type: only read by the layers of")));
  config.recurrent.linear_attention_type = LinearAttentionType::GatedDeltaNet;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_FALSE(block_spec(config, 0).recurrent()->shape.decays_channels());
  EXPECT_TRUE(block_spec(config, 1).recurrent()->shape.decays_channels());
  EXPECT_EQ(model_sizes(config).linear_num_key_heads, 4);
}

TEST(BlockSpecTest, HasPostNormsInLayersOfPostNormFreq) {
  ModelConfig config = small_model();
  config.post_norm_freq = {3};
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(block_spec(config, 1).norm_position, NormPosition::Pre);
  EXPECT_EQ(block_spec(config, 2).norm_position, NormPosition::Post);
  EXPECT_THAT(BlockKinds(config).count(0, 6), ElementsAre(4, 2));
  EXPECT_THAT(describe_blocks(config), HasSubstr("[attention gqa 4/2 | gelu 96 | post norms]"));
  config.norm_position = NormPosition::Both, config.post_norm_freq = {1, 0};
  EXPECT_THAT(
      config.conflicts(),
      UnorderedElementsAre(HasSubstr("model.post_norm_freq: only read when norm_position is \"pre\""),
                           HasSubstr("model.post_norm_freq: has 2 values; must have one, or one for each of the 6")));
}

TEST(BlockSpecTest, RecurrentConflictsNameKeyAndAllowedValues) {
  ModelConfig config = small_model();
  config.recurrent.linear_num_key_heads = 3, config.recurrent.mamba_state_dim = 16;
  config.recurrent.linear_conv_kernel_dim = 2;
  config.recurrent.linear_allow_neg_eigval = true, config.recurrent.linear_norm_epsilon = 1e-5;
  EXPECT_THAT(
      config.conflicts(),
      UnorderedElementsAre(HasSubstr("model.linear_allow_neg_eigval: only read by layers with linear attention"),
                           HasSubstr("model.linear_norm_epsilon: only read by layers with linear attention"),
                           HasSubstr("model.linear_num_key_heads: only read by layers with linear attention"),
                           HasSubstr("model.mamba_state_dim: only read by layers with Mamba-2"),
                           HasSubstr("model.linear_conv_kernel_dim: only read by layers with")));
  config = small_model();
  config.recurrent.linear_attention_freq = {1, 0}, config.recurrent.linear_num_key_heads = 5;
  EXPECT_THAT(config.conflicts(),
              UnorderedElementsAre(HasSubstr("model.linear_attention_freq: has 2 values; must have one"),
                                   HasSubstr("model.linear_num_value_heads: 32 is not a multiple of")));
  config = small_model();
  config.hybrid_layer_pattern = "MMMMMM", config.recurrent.mamba_head_dim = 48;
  config.recurrent.linear_attention_freq = {2};
  EXPECT_THAT(config.conflicts(),
              UnorderedElementsAre(HasSubstr("replaces linear_attention_freq"),
                                   HasSubstr("model.mamba_head_dim: 48 does not divide 2 x hidden_size")));
  config.recurrent = {}, config.recurrent.mamba_num_heads = 9;
  EXPECT_THAT(config.conflicts(),
              ElementsAre(HasSubstr("model.mamba_num_groups: 9 heads cannot be shared evenly by 8 groups")));
}

TEST(BlockSpecTest, ConflictsNameKeyAndAllowedValues) {
  ModelConfig config = small_model();
  config.hybrid_layer_pattern = "*X*";
  config.use_parallel_residual = true;
  config.num_attention_heads = PerLayer<i64>({4, 8});
  config.num_query_groups = PerLayer<i64>({2, 2, 3, 2, 2, 2});
  config.no_rope_freq = {2};
  EXPECT_THAT(config.conflicts(),
              UnorderedElementsAre(
                  HasSubstr("model.num_attention_heads: has 2 values; must have one, or one for each of the 6 layers"),
                  HasSubstr("model.kv_channels: must be set if num_attention_heads is a list"),
                  HasSubstr("model.hybrid_layer_pattern: must consist of * (attention), M (Mamba-2), G (Gated "
                            "DeltaNet), K (Kimi Delta Attention), - (MLP) and E "
                            "(experts), not X"),
                  HasSubstr("model.hybrid_layer_pattern: has 3 characters; must have one for each of the num_layers"),
                  HasSubstr("remove use_parallel_residual"),
                  HasSubstr("model.no_rope_freq: only read when position_embedding_type is \"rope\"")));
  config = small_model();
  config.num_query_groups = PerLayer<i64>({2, 2, 3, 2, 2, 2});
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("4 heads cannot be shared evenly by 3 groups")));
  config = small_model();
  config.hybrid_layer_pattern = "*-E*-E";
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("E needs num_experts")));
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

TEST(BlockSpecTest, LayersOfMultiTokenPredictionEqualLastLayer) {
  ModelConfig config = small_model();
  config.mtp_num_layers = 2;
  config.moe.num_experts = 4;
  config.moe.layer_freq = {0, 0, 1, 0, 0, 1};
  EXPECT_EQ(block_spec(config, 7), block_spec(config, 5));
  EXPECT_THAT(layers_with_experts(config, 0, config.num_blocks()), ElementsAre(2, 5, 6, 7));
}

TEST(BlockSpecTest, LayersOfMultiTokenPredictionHaveStatedBranches) {
  ModelConfig config = small_model();
  config.position_embedding_type = PositionEmbedding::Rope;
  config.mtp_num_layers = 2;
  config.moe.num_experts = 4;
  config.moe.layer_freq = {0, 1, 1, 1, 1, 0};
  config.recurrent.linear_attention_freq = {1, 0, 1, 0, 1, 1};
  config.mtp_hybrid_layer_pattern = "*E";
  EXPECT_TRUE(config.conflicts().empty());
  EXPECT_EQ(block_spec(config, 6), block_spec(config, 3));
  EXPECT_EQ(block_spec(config, 7), block_spec(config, 3));
  EXPECT_THAT(BlockKinds(config).count(0, 8), ElementsAre(2, 4, 2));
  EXPECT_THAT(describe_blocks(config),
              testing::EndsWith(", 2 x [attention gqa 4/2 rope | 4 experts top 2 gelu 96] for multi-token prediction"));
  config.mtp_hybrid_layer_pattern = "-";
  EXPECT_FALSE(block_spec(config, 6).has_mixer());
  EXPECT_EQ(block_spec(config, 6).mlp()->ffn_hidden_size, 96);
}

TEST(BlockSpecTest, RejectsImpossibleBranchesOfMultiTokenPrediction) {
  ModelConfig config = small_model();
  config.position_embedding_type = PositionEmbedding::Rope;
  config.mtp_num_layers = 1;
  const auto with = [&](const char* pattern) {
    config.mtp_hybrid_layer_pattern = pattern;
    return config.conflicts();
  };
  for (const char* pattern : {"E*", "**", "*-E", "x", "*x", "-E"})
    EXPECT_THAT(with(pattern), ElementsAre(HasSubstr("one of each in this order"))) << pattern;
  EXPECT_THAT(with("*E"), ElementsAre("model.mtp_hybrid_layer_pattern: \"*E\" needs num_experts; set it, or use - "
                                      "instead of E"));
  EXPECT_THAT(with("M-"), ElementsAre(HasSubstr("needs a layer with Mamba-2 in hybrid_layer_pattern")));
  EXPECT_THAT(with("G"), ElementsAre(HasSubstr("needs a layer with Gated DeltaNet")));
  EXPECT_THAT(with("K-"), ElementsAre(HasSubstr("needs a layer with Kimi Delta Attention")));
  config.recurrent.linear_attention_freq = {2};
  EXPECT_THAT(with("G-"), IsEmpty());
  EXPECT_THAT(with("K-"), ElementsAre(HasSubstr("needs a layer with Kimi Delta Attention")));
  config.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
  EXPECT_THAT(with("K-"), IsEmpty());
  EXPECT_TRUE(block_spec(config, config.num_layers).recurrent()->shape.decays_channels());
  config.recurrent = {};
  config.use_parallel_residual = true;
  EXPECT_THAT(with("*"), ElementsAre(HasSubstr("is one branch, which cannot run in parallel")));
  config.mtp_num_layers = 0;
  EXPECT_THAT(with("*-"), ElementsAre("model.mtp_hybrid_layer_pattern: only read when mtp_num_layers is set"));
}

TEST(BlockSpecTest, RejectsImpossibleMultiTokenPrediction) {
  ModelConfig config = small_model();
  config.mtp_num_layers = 10;
  config.seq_length = 10;
  EXPECT_THAT(config.conflicts(),
              ElementsAre("model.mtp_num_layers: needs position_embedding_type = \"rope\" or \"none\"",
                          "model.mtp_num_layers: 10 must be below seq_length 10"));
  config.mtp_num_layers = 0;
  config.mtp_loss_scaling_factor = 0.3;
  EXPECT_THAT(config.conflicts(), ElementsAre("model.mtp_loss_scaling_factor: only read when mtp_num_layers is set"));
}

}  // namespace
}  // namespace mcpp
