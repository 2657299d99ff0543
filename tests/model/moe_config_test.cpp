#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/block_spec.h"
#include "model/config/config.h"
#include "model/config/moe.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

ModelConfig with_experts() {
  ModelConfig config;
  config.vocab_size = 100;
  config.num_layers = 4;
  config.add_bias_linear = false;
  config.moe.num_experts = 8;
  return config;
}

TEST(MoeConfigTest, ExpertKeysRequireExperts) {
  ModelConfig config = with_experts();
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.moe.num_experts = 0;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.moe.aux_loss_coeff = 0.01;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.num_experts: must be set")));
}

TEST(MoeConfigTest, AllowsBiasesInExperts) {
  for (bool ModelConfig::*biases :
       {&ModelConfig::add_bias_linear, &ModelConfig::add_mlp_bias, &ModelConfig::add_qkv_bias}) {
    ModelConfig config = with_experts();
    config.*biases = true;
    EXPECT_THAT(config.conflicts(), IsEmpty());
  }
}

TEST(MoeConfigTest, ReportsAllConflictsAtOnce) {
  ModelConfig config = with_experts();
  MoeConfig& moe = config.moe;
  moe.router_topk = 9;
  moe.layer_freq = {1, 0};
  moe.router_enable_expert_bias = true;
  moe.router_num_groups = 3;
  moe.router_group_topk = 1;
  moe.token_drop_policy = TokenDropPolicy::Position;
  moe.shared_expert_gate = true;
  EXPECT_THAT(
      config.conflicts(),
      UnorderedElementsAre(HasSubstr("model.moe_router_topk: 9 is more than num_experts = 8"),
                           HasSubstr("model.moe_layer_freq: has 2 values; must have one, or one for each of the 4"),
                           HasSubstr("model.moe_router_enable_expert_bias: needs"),
                           HasSubstr("model.moe_router_num_groups: 3 does not divide num_experts = 8"),
                           HasSubstr("model.moe_token_drop_policy: only read"),
                           HasSubstr("model.moe_shared_expert_gate: only read")));
}

TEST(MoeConfigTest, RejectsSoftmaxOverSingleChosenExpert) {
  ModelConfig config = with_experts();
  config.moe.router_topk = 1;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.moe_router_pre_softmax: must be true")));
  config.moe.router_pre_softmax = true;
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(MoeConfigTest, GroupsMustHaveEnoughExperts) {
  ModelConfig config = with_experts();
  config.moe.router_num_groups = 4;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("must be set together")));
  config.moe.router_group_topk = 1;
  config.moe.router_topk = 3;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("must have at least moe_router_topk = 3 experts")));
  config.moe.router_group_topk = 2;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.moe.router_group_score_topk = 3;
  EXPECT_THAT(config.conflicts(),
              ElementsAre("model.moe_router_group_score_topk: 3 is more than the 2 experts of a group"));
  config.moe.router_num_groups = config.moe.router_group_topk = 0;
  EXPECT_THAT(config.conflicts(),
              ElementsAre("model.moe_router_group_score_topk: only read when moe_router_num_groups is set"));
}

TEST(MoeConfigTest, RequiresAtLeastOneExpertLayer) {
  ModelConfig config = with_experts();
  config.moe.layer_freq = {0, 0, 0, 0};
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.moe_layer_freq: selects no layer")));
  config.moe.layer_freq = {0, 0, 0, 1};
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(MoeConfigTest, SelectsLayersByFrequency) {
  ModelConfig config;
  config.moe.num_experts = 2;
  const auto has_experts = [&](i64 layer) { return block_spec(config, layer).moe() != nullptr; };
  EXPECT_TRUE(has_experts(0) && has_experts(1));
  config.moe.layer_freq = {2};
  EXPECT_TRUE(has_experts(0) && !has_experts(1) && has_experts(2));
  config.moe.layer_freq = {0, 1, 1};
  EXPECT_TRUE(!has_experts(0) && has_experts(1) && has_experts(2));
}

}  // namespace
}  // namespace mcpp
