// Scaled frequencies against the published formulas, and against transformers 5.23 in double precision.
#include "model/config/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "model/config/block_spec.h"
#include "model/config/config.h"

namespace mcpp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RopeScaling llama31() {
  return {.type = RopeScalingType::Llama3, .factor = 8, .original_max_position_embeddings = 8192};
}

void expect_channels(const std::vector<double>& frequencies, const std::map<std::size_t, double>& expected) {
  for (const auto& [channel, value] : expected)
    EXPECT_NEAR(frequencies.at(channel), value, 1e-14 * value) << "channel " << channel;
}

double unscaled(double base, i64 dim, i64 i) {
  return std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
}

TEST(RopeScalingTest, NoneKeepsFrequencies) {
  const std::vector<double> frequencies = RopeScaling().frequencies(10000, 64, 1024);
  ASSERT_EQ(frequencies.size(), 32u);
  for (i64 i = 0; i < 32; ++i) EXPECT_EQ(frequencies[static_cast<std::size_t>(i)], unscaled(10000, 64, i));
  EXPECT_EQ(RopeScaling().magnitude(), 1);
}

TEST(RopeScalingTest, LinearDividesAllFrequencies) {
  const RopeScaling scaling{.type = RopeScalingType::Linear, .factor = 2.5};
  expect_channels(scaling.frequencies(10000, 64, 4096),
                  {{0, 0.4}, {1, 0.29995768373298237}, {31, 5.3340857286532955e-05}});
  EXPECT_EQ(scaling.magnitude(), 1);
}

// Formula published by Meta with Llama 3.1, by wavelength.
TEST(RopeScalingTest, Llama31MatchesPublishedCode) {
  const std::vector<double> frequencies = llama31().frequencies(500000, 128, 131072);
  ASSERT_EQ(frequencies.size(), 64u);
  int kept = 0, smoothed = 0, divided = 0;
  for (i64 i = 0; i < 64; ++i) {
    const double f = unscaled(500000, 128, i), wave_length = 2 * std::numbers::pi / f,
                 smooth = (8192 / wave_length - 1) / 3;
    const double expected = wave_length < 8192.0 / 4   ? (++kept, f)
                            : wave_length > 8192.0 / 1 ? (++divided, f / 8)
                                                       : (++smoothed, (1 - smooth) * f / 8 + smooth * f);
    EXPECT_NEAR(frequencies[static_cast<std::size_t>(i)], expected, 1e-14 * expected) << i;
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(smoothed, 6);
  EXPECT_EQ(divided, 29);
}

TEST(RopeScalingTest, MatchesTransformers) {
  expect_channels(llama31().frequencies(500000, 128, 131072), {{0, 1},
                                                               {1, 0.81461723385654472},
                                                               {28, 0.0032114459947525913},
                                                               {29, 0.0021665707635033591},
                                                               {30, 0.0013718935677611379},
                                                               {33, 0.00031269375038406517},
                                                               {35, 9.5562123539646833e-05},
                                                               {63, 3.0689259889145111e-07}});
  const RopeScaling qwen25{.type = RopeScalingType::Yarn, .factor = 4, .original_max_position_embeddings = 32768};
  expect_channels(qwen25.frequencies(1e6, 128, 131072), {{0, 1},
                                                         {1, 0.80584218776148187},
                                                         {20, 0.013335214321633241},
                                                         {23, 0.0069783058485986633},
                                                         {24, 0.0053753214907901019},
                                                         {30, 0.0010643609812470017},
                                                         {35, 0.00024625840690893869},
                                                         {39, 6.4903943208370279e-05},
                                                         {40, 4.4456985250973067e-05},
                                                         {63, 3.1023444018792988e-07}});
  EXPECT_DOUBLE_EQ(qwen25.magnitude(), 1.138629436111989);
  const RopeScaling deepseek{.type = RopeScalingType::Yarn,
                             .factor = 40,
                             .original_max_position_embeddings = 4096,
                             .beta_fast = 24,
                             .beta_slow = 2,
                             .mscale = 0.707,
                             .mscale_all_dim = 1,
                             .truncate = false};
  expect_channels(deepseek.frequencies(10000, 64, 163840), {{0, 1},
                                                            {3, 0.42169650342858228},
                                                            {7, 0.1333521432163324},
                                                            {8, 0.1},
                                                            {15, 0.0080217287848704331},
                                                            {31, 3.3338035804083101e-06}});
  EXPECT_DOUBLE_EQ(deepseek.magnitude(), 0.9210423553163399);
}

TEST(RopeScalingTest, OriginalContextDefaultsToMaxPositionEmbeddings) {
  RopeScaling explicit_context = llama31(), default_context = llama31();
  default_context.original_max_position_embeddings = 0;
  EXPECT_EQ(explicit_context.frequencies(500000, 128, 100), default_context.frequencies(500000, 128, 8192));
  EXPECT_NE(explicit_context.frequencies(500000, 128, 100), default_context.frequencies(500000, 128, 100));
}

TEST(RopeScalingTest, UsesExplicitAttentionFactor) {
  RopeScaling scaling{.type = RopeScalingType::Yarn, .factor = 4, .mscale = 0.5, .attention_factor = 1.25};
  EXPECT_EQ(scaling.magnitude(), 1.25);
  scaling.attention_factor = 0;
  EXPECT_DOUBLE_EQ(scaling.magnitude(),
                   0.1 * std::log(4) + 1);  // mscale takes effect only together with mscale_all_dim
}

TEST(RopeScalingTest, ReportsKeysWithoutEffect) {
  const auto conflicts = [](const RopeScaling& scaling, bool rotates = true) {
    std::vector<std::string> found;
    scaling.add_conflicts(rotates, found);
    return found;
  };
  EXPECT_THAT(conflicts({}), IsEmpty());
  EXPECT_THAT(conflicts(llama31()), IsEmpty());
  EXPECT_THAT(conflicts(llama31(), false), ElementsAre(HasSubstr("model.rope_scaling_type: only read when position")));
  EXPECT_THAT(conflicts({.factor = 2}),
              ElementsAre("model.rope_scaling_factor: only read when rope_scaling_type is not \"none\""));
  EXPECT_THAT(
      conflicts({.type = RopeScalingType::Linear, .factor = 2, .original_max_position_embeddings = 5, .beta_fast = 3}),
      ElementsAre(HasSubstr("original_max_position_embeddings: only read"), HasSubstr("rope_scaling_beta_fast")));
  EXPECT_THAT(conflicts({.type = RopeScalingType::Llama3, .low_freq_factor = 4}), IsEmpty());
  EXPECT_THAT(conflicts({.type = RopeScalingType::Llama3, .low_freq_factor = 5}),
              ElementsAre(HasSubstr("model.rope_scaling_high_freq_factor: 4 must be at least")));
  EXPECT_THAT(conflicts({.type = RopeScalingType::Yarn, .beta_slow = 32}),
              ElementsAre(HasSubstr("model.rope_scaling_beta_fast: 32 must be above")));
}

TEST(SlidingWindowTest, AppliesToSelectedLayers) {
  const auto windows = [](std::vector<i64> skip_freq) {
    ModelConfig config;
    config.num_layers = 5;
    config.window_size = {6, 0};
    config.window_attn_skip_freq = std::move(skip_freq);
    EXPECT_THAT(config.conflicts(), IsEmpty());
    std::vector<i64> result;
    for (i64 layer = 0; layer < config.num_layers; ++layer)
      result.push_back(block_spec(config, layer).attention()->window);
    return result;
  };
  EXPECT_THAT(windows({}), ElementsAre(7, 7, 7, 7, 7));
  EXPECT_THAT(windows({2}), ElementsAre(7, 0, 7, 0, 7));  // Gemma 2
  EXPECT_THAT(windows({1}), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(windows({0, 0, 1, 1, 0}), ElementsAre(0, 0, 7, 7, 0));
  EXPECT_EQ(block_spec(ModelConfig(), 3).attention()->window, 0);
}

TEST(RopeLocalBaseFreqTest, IsUsedOnlyInWindowLayers) {
  ModelConfig config;
  config.rope_local_base_freq = 100;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("only read when position_embedding_type is \"rope\""),
                                              HasSubstr("only read when window_size is set")));
  config.position_embedding_type = PositionEmbedding::Rope;
  config.window_size = {4, 0};
  config.window_attn_skip_freq = {2};
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_EQ(block_spec(config, 0).attention()->rope, RotaryKind::Local);
  EXPECT_EQ(block_spec(config, 1).attention()->rope, RotaryKind::Global);
  config.rope_scaling.type = RopeScalingType::Linear;
  config.rope_scaling.factor = 8;
  config.kv_channels = 4;
  EXPECT_EQ(config.rotary_frequencies(true), (std::vector<double>{1, 0.1}));
  EXPECT_EQ(config.rotary_frequencies(), (std::vector<double>{1.0 / 8, 0.01 / 8}));
  config.rope_local_base_freq = 0.5;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("must be above 1, or 0")));
}

TEST(QkLayernormTest, AllHeadsRequiresQkLayernormAndRMSNorm) {
  ModelConfig config;
  config.qk_layernorm_all_heads = true;
  EXPECT_THAT(config.conflicts(), Contains(HasSubstr("only read when qk_layernorm is true")));
  config.qk_layernorm = true;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("needs normalization = \"RMSNorm\"")));
  config.normalization = Normalization::RMSNorm;
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(SlidingWindowTest, RejectsInvalidValues) {
  const auto conflicts = [](std::vector<i64> size, std::vector<i64> skip_freq) {
    ModelConfig config;
    config.num_layers = 3;
    config.window_size = std::move(size);
    config.window_attn_skip_freq = std::move(skip_freq);
    return config.conflicts();
  };
  EXPECT_THAT(conflicts({4, 0}, {3}), IsEmpty());
  EXPECT_THAT(conflicts({4}, {}), ElementsAre(HasSubstr("model.window_size: must be [before, 0]")));
  EXPECT_THAT(conflicts({4, 1}, {}), ElementsAre(HasSubstr("model.window_size: must be [before, 0]")));
  EXPECT_THAT(conflicts({}, {2}), ElementsAre(HasSubstr("only read when window_size is set")));
  EXPECT_THAT(conflicts({4, 0}, {0}), ElementsAre(HasSubstr("at least 1")));
  EXPECT_THAT(conflicts({4, 0}, {1, 0}), ElementsAre(HasSubstr("has 2 values")));
  EXPECT_THAT(conflicts({4, 0}, {1, 2, 0}), ElementsAre(HasSubstr("1 (window) or 0")));
}

}  // namespace
}  // namespace mcpp
