#include "optimizer/param_group.h"

#include <gtest/gtest.h>

#include <random>

namespace mcpp {
namespace {

const ParamGroup kDecays{}, kDoesNot{.wd_mult = 0};

TEST(ParamGroupTest, OnlyMatricesDecay) {
  const auto wd_mult = [](const char* name, const Shape& shape) {
    return group_of(Param(name, shape, Init::Normal), {}).wd_mult;
  };
  EXPECT_EQ(wd_mult("embedding.word_embeddings.weight", {9, 5}), 1);
  EXPECT_EQ(wd_mult("mlp.linear_fc1.weight", {2, 9, 5}), 1);
  EXPECT_EQ(wd_mult("mlp.linear_fc1.bias", {2, 9}), 0);
  EXPECT_EQ(wd_mult("final_layernorm.weight", {5}), 0);
}

TEST(ParamGroupTest, TakesFirstTableThatMatches) {
  OptimizerConfig config;
  config.adam_eps = 1e-6;
  config.param_group = {
      {.match = OneOrList(std::vector<std::string>{"embedding.*", "output_layer.*"}),
       .lr_mult = 0.5,
       .adam_beta2 = 0.9},
      {.match = OneOrList<std::string>("*.bias"), .wd_mult = 1},
      {.match = OneOrList<std::string>("*"), .lr_mult = 2, .wd_mult = 0.25, .adam_beta1 = 0, .adam_eps = 1e-3}};
  const auto group = [&](const char* name, const Shape& shape) {
    return group_of(Param(name, shape, Init::Normal), config);
  };
  const ParamGroup embedding{.lr_mult = 0.5, .adam_beta2 = 0.9, .adam_eps = 1e-6};
  EXPECT_EQ(group("embedding.word_embeddings.weight", {9, 5}), embedding);
  EXPECT_EQ(group("output_layer.weight", {9, 5}), embedding);
  EXPECT_EQ(group("mlp.linear_fc1.bias", {2, 9}), (ParamGroup{.adam_eps = 1e-6}));
  EXPECT_EQ(group("final_layernorm.weight", {5}),
            (ParamGroup{.lr_mult = 2, .wd_mult = 0.25, .adam_beta1 = 0, .adam_eps = 1e-3}));
  config.param_group.pop_back();
  EXPECT_EQ(group("final_layernorm.weight", {5}), (ParamGroup{.wd_mult = 0, .adam_eps = 1e-6}));
}

/// The rules of Yang et al. 2022, table 8, and for Muon the spectral norm of the update relative to sqrt(out / in).
TEST(ParamGroupTest, ScalesUpdatesWithWidth) {
  Param matrix("decoder.layers.0.mlp.linear_fc1.weight", {8, 8}, Init::Normal);
  matrix.width_mult = 4;
  OptimizerConfig config;
  EXPECT_EQ(group_of(matrix, config), (ParamGroup{.lr_mult = 0.25, .wd_mult = 4, .adam_eps = 1e-8 / 4}));
  config.param_group = {{.match = OneOrList<std::string>("*"), .lr_mult = 2, .wd_mult = 0.5}};
  EXPECT_EQ(group_of(matrix, config), (ParamGroup{.lr_mult = 0.5, .wd_mult = 2, .adam_eps = 1e-8 / 4}));
  config.param_group.clear();
  config.optimizer = OptimizerKind::Muon;
  EXPECT_EQ(group_of(matrix, config).lr_mult, 0.25);  // a router, which adam updates
  matrix.matrices = {matrix.box};
  EXPECT_EQ(group_of(matrix, config), (ParamGroup{.rule = OptimizerKind::Muon, .lr_mult = 0.5, .wd_mult = 2}));
  for (const MuonScaleMode mode : {MuonScaleMode::UnitRmsNorm, MuonScaleMode::ShapeScaling}) {
    config.muon_scale_mode = mode;
    EXPECT_EQ(group_of(matrix, config), ParamGroup{.rule = OptimizerKind::Muon});
  }
}

TEST(GroupRunsTest, MergeNeighborsOfSameGroup) {
  const std::vector<ParamMeta> params{{"embedding", 1000, 0}, {"w0", 100, 1}, {"b0", 10, 1},
                                      {"w1", 100, 2},         {"b1", 10, 2},  {"norm", 5, 2}};
  const std::vector<ParamGroup> groups{kDecays, kDecays, kDoesNot, kDecays, kDoesNot, kDoesNot};
  const BufferPlan plan = plan_buffer(params, 1, 0);
  const std::vector<GroupRun> runs = group_runs(plan, groups, 0, plan.total);
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].end, 1152);  // embedding and w0
  EXPECT_EQ(runs[3].begin, 1344);
  EXPECT_EQ(runs[3].end, plan.total);
  EXPECT_EQ(runs[3].group, kDoesNot);
}

TEST(GroupRunsTest, CoverAnyChunksOfAnyPlan) {
  std::mt19937 random(1);
  const auto below = [&](u32 n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    std::vector<ParamMeta> params(static_cast<std::size_t>(below(40)));
    std::vector<ParamGroup> groups;
    for (ParamMeta& p : params) {
      p = {"p", below(5000), 0};
      groups.push_back(below(2) == 0 ? kDecays : kDoesNot);
    }
    const BufferPlan plan = plan_buffer(params, 1 + below(9), below(20000));
    const i64 chunk = 64 * (1 + below(50));
    i64 covered = 0;
    for (i64 begin = 0; begin < plan.total; begin += chunk) {
      const i64 end = std::min(begin + chunk, plan.total);
      for (const GroupRun& run : group_runs(plan, groups, begin, end)) {
        EXPECT_EQ(run.begin, covered);
        EXPECT_LT(run.begin, run.end);
        covered = run.end;
      }
      EXPECT_EQ(covered, end);
    }
  }
}

}  // namespace
}  // namespace mcpp
