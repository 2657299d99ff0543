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

TEST(MoeConfigTest, BalancingLossesNeedOneCoefficientEach) {
  ModelConfig config = with_experts();
  MoeConfig& moe = config.moe;
  moe.router_load_balancing_type = OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss});
  moe.aux_loss_coeff = 0.01;
  EXPECT_THAT(config.conflicts(), ElementsAre("model.moe_aux_loss_coeff: must have one value for each of the 2 losses "
                                              "of moe_router_load_balancing_type, not 1"));
  moe.aux_loss_coeff = OneOrList(std::vector{0.01, 0.5});
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_DOUBLE_EQ(moe.total_aux_loss_coeff(), 0.51);
  EXPECT_EQ(moe.aux_loss_coeff_of(LoadBalancing::SeqAuxLoss), 0.5);
  EXPECT_EQ(moe.aux_loss_coeff_of(LoadBalancing::GlobalAuxLoss), 0);
  moe.router_load_balancing_type = OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::AuxLoss});
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("\"aux_loss\" occurs twice")));
  moe.router_load_balancing_type = OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::None});
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("\"none\" excludes balancing losses")));
  moe.router_load_balancing_type = LoadBalancing::None, moe.aux_loss_coeff = 0.01;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("model.moe_aux_loss_coeff: only read when")));
}

TEST(MoeConfigTest, ExpertBiasNeedsScoresOfSingleExperts) {
  ModelConfig config = with_experts();
  config.moe.router_enable_expert_bias = true;
  EXPECT_THAT(config.conflicts(), ElementsAre(HasSubstr("\"sigmoid\" or \"sqrtsoftplus\"")));
  for (const RouterScore score : {RouterScore::Sigmoid, RouterScore::SqrtSoftplus}) {
    config.moe.router_score_function = score;
    EXPECT_THAT(config.conflicts(), IsEmpty());
  }
}

TEST(MoeConfigTest, DescribesLatent) {
  ModelConfig config = with_experts();
  config.num_layers = 1, config.moe.ffn_hidden_size = 48, config.moe.latent_size = 24;
  EXPECT_EQ(describe_blocks(config), "1 x [attention 12 | 8 experts top 2 gelu 48 latent 24]");
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
