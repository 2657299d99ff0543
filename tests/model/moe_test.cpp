// Layers with experts on one rank: gradients, including those of the balancing losses, against finite differences in
// double precision, and routing decisions that must be deterministic.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "model/flops.h"
#include "model/gpt_model.h"
#include "tests/support/gradcheck.h"
#include "tests/support/tiny_model.h"

namespace mcpp::moe_test {
namespace {

using test::TinyModel;

ModelConfig with_experts() {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 2;
  config.moe.num_experts = 4;
  config.moe.ffn_hidden_size = 24;
  return config;
}

struct NamedConfig {
  const char* name;
  ModelConfig config;
};

using Change = std::function<void(ModelConfig&, MoeConfig&)>;

void add_nemotron_models(const std::function<void(const char*, const Change&)>& add) {
  add("balanced_in_three_scopes", [](ModelConfig&, MoeConfig& moe) {
    moe.router_score_function = RouterScore::SqrtSoftplus, moe.router_enable_expert_bias = true;
    moe.router_load_balancing_type =
        OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss});
    moe.aux_loss_coeff = OneOrList(std::vector{0.5, 0.25, 1.5}), moe.z_loss_coeff = 0.3;
  });
  add("latent", [](ModelConfig& config, MoeConfig& moe) {
    config.activation_func = ActivationFunction::SquaredReLU;
    moe.latent_size = 12, moe.router_score_function = RouterScore::Sigmoid, moe.shared_expert_intermediate_size = 16;
    moe.router_enable_expert_bias = true, moe.router_load_balancing_type = LoadBalancing::SeqAuxLoss;
    moe.aux_loss_coeff = 0.5;
  });
  add("latent_biases", [](ModelConfig& config, MoeConfig& moe) {
    config.add_mlp_bias = true, moe.latent_size = 40, moe.router_topk = 3, moe.router_dtype = RouterDType::Fp64;
    moe.router_add_bias = true, moe.expert_capacity_factor = 0.75;
  });
  add("latent_weighted_inputs", [](ModelConfig&, MoeConfig& moe) {
    moe.latent_size = 20, moe.router_topk = 1, moe.router_score_function = RouterScore::SqrtSoftplus;
    moe.apply_probs_on_input = true, moe.router_topk_scaling_factor = 1.5;
  });
}

std::vector<NamedConfig> models() {
  std::vector<NamedConfig> all;
  const auto add = [&](const char* name, const Change& change) {
    ModelConfig config = with_experts();
    change(config, config.moe);
    all.push_back({name, config});
  };
  add("softmax", [](ModelConfig&, MoeConfig&) {});
  add("balanced", [](ModelConfig&, MoeConfig& moe) { moe.aux_loss_coeff = 0.5, moe.z_loss_coeff = 0.3; });
  add("balanced_by_sample", [](ModelConfig&, MoeConfig& moe) {
    moe.aux_loss_coeff = 0.5;
    moe.router_load_balancing_type = LoadBalancing::SeqAuxLoss;
  });
  add("switch", [](ModelConfig& config, MoeConfig& moe) {
    config.activation_func = ActivationFunction::Gelu;
    moe.router_topk = 1, moe.router_pre_softmax = true, moe.expert_capacity_factor = 1, moe.aux_loss_coeff = 0.1;
  });
  add("jitter", [](ModelConfig&, MoeConfig& moe) { moe.input_jitter_eps = 0.1, moe.aux_loss_coeff = 0.1; });
  add("forced", [](ModelConfig&, MoeConfig& moe) { moe.router_force_load_balancing = true, moe.aux_loss_coeff = 0.1; });
  add("padded", [](ModelConfig&, MoeConfig& moe) {
    moe.expert_capacity_factor = 0.75, moe.pad_expert_input_to_capacity = true;
    moe.shared_expert_intermediate_size = 16;
  });
  add("sigmoid_shared", [](ModelConfig&, MoeConfig& moe) {
    moe.router_topk = 3, moe.router_score_function = RouterScore::Sigmoid, moe.router_topk_scaling_factor = 2;
    moe.shared_expert_intermediate_size = 16, moe.shared_expert_gate = true, moe.aux_loss_coeff = 0.2;
  });
  add("biases", [](ModelConfig& config, MoeConfig& moe) {
    config.add_bias_linear = true, config.activation_func = ActivationFunction::Gelu;
    moe.router_topk = 3, moe.shared_expert_intermediate_size = 16, moe.shared_expert_gate = true;
  });
  add("gated_biases", [](ModelConfig& config, MoeConfig& moe) {
    config.add_mlp_bias = true;
    moe.expert_capacity_factor = 0.75, moe.pad_expert_input_to_capacity = true;
    moe.shared_expert_intermediate_size = 16;
  });
  add("router_bias", [](ModelConfig& config, MoeConfig& moe) {
    config.add_mlp_bias = true, config.activation_func = ActivationFunction::QuickGeGLU;
    config.activation_func_clamp_value = 0.2, config.glu_linear_offset = 1;
    moe.router_add_bias = true, moe.aux_loss_coeff = 0.5, moe.z_loss_coeff = 0.3;
  });
  add("weighted_inputs", [](ModelConfig&, MoeConfig& moe) {
    moe.router_topk = 1, moe.router_score_function = RouterScore::Sigmoid, moe.apply_probs_on_input = true;
    moe.shared_expert_intermediate_size = 16, moe.layer_freq = {0, 1}, moe.expert_capacity_factor = 0.75;
  });
  add("every_other_layer", [](ModelConfig&, MoeConfig& moe) {
    moe.layer_freq = {0, 1}, moe.expert_capacity_factor = 0.75, moe.token_drop_policy = TokenDropPolicy::Position;
    moe.shared_expert_intermediate_size = 8;
  });
  add_nemotron_models(add);
  return all;
}

class MoeModelTest : public testing::TestWithParam<NamedConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, MoeModelTest, testing::ValuesIn(models()), [](const auto& p) { return p.param.name; });

/// Returns the token loss plus the losses of the routers times their coefficients.
double whole_loss(TinyModel& m) {
  for (const auto& [layer, router] : m.model.routers()) router->clear_counts();
  MicrobatchContext microbatch = m.pass(true);
  double loss = m.model.loss(m.tokens, {m.targets}, 1, microbatch).next.sum();
  const MoeConfig& moe = m.model.context().config.moe;
  for (const auto& [layer, router] : m.model.routers())
    loss +=
        moe.total_aux_loss_coeff() * router->read_tally().balance_loss + moe.z_loss_coeff * router->read_tally().z_loss;
  return loss;
}

TEST_P(MoeModelTest, GradientsMatchFiniteDifferencesOfTotalLoss) {
  TinyModel m(GetParam().config, DType::F64);
  m.make_batch(2);
  m.step();
  m.model.visit([&](Param& param, int) {
    test::expect_gradient([&] { return whole_loss(m); }, param.value, param.main_grad, param.name, 1e-5, 12);
  });
}

TEST_P(MoeModelTest, RecomputationAndDelayedWeightGradientsAreBitwiseIdentical) {
  ModelConfig config = GetParam().config;
  config.hidden_dropout = 0.1;
  const auto run = [&](const Recompute& recompute, bool defers) {
    TinyModel m(config, DType::F32, recompute);
    m.make_batch(2);
    m.step(defers);
    test::Numbers all = m.gradients();
    for (const auto& [layer, router] : m.model.routers()) {
      const std::vector<double> tally = router->read_tally().values();
      all.insert(all.end(), tally.begin(), tally.end());
    }
    return all;
  };
  const test::Numbers expected = run({}, false);
  using Granularity = Recompute::Granularity;
  EXPECT_EQ(run({.granularity = Granularity::Full}, false), expected);
  EXPECT_EQ(run({.granularity = Granularity::Full, .num_layers = 2}, false), expected);
  EXPECT_EQ(run({.granularity = Granularity::Selective, .layernorm = true, .mlp_act = true, .moe_act = true}, false),
            expected);
  EXPECT_EQ(run({}, true), expected);
}

TEST_P(MoeModelTest, CountsEveryChoiceOnce) {
  TinyModel m(GetParam().config, DType::F32);
  m.make_batch(2);
  m.loss();  // an evaluation does not change the counts
  m.step();
  const ModelConfig& config = GetParam().config;
  const auto choices = static_cast<double>(2 * config.seq_length * config.moe.router_topk);
  ASSERT_FALSE(m.model.routers().empty());
  for (const auto& [layer, router] : m.model.routers()) {
    const RoutingCounts& tally = router->read_tally();
    EXPECT_EQ(std::accumulate(tally.tokens.begin(), tally.tokens.end(), 0.0), choices);
    EXPECT_EQ(tally.dropped > 0, config.moe.expert_capacity_factor > 0);
  }
}

/// Tokens are dropped only in training. Otherwise, the result of a sample must not depend on other samples of its
/// batch.
TEST(MoeCapacityTest, IsIgnoredOutsideTraining) {
  constexpr i64 kBatch = 4;
  ModelConfig config = with_experts();
  config.moe.expert_capacity_factor = 0.5;
  TinyModel m(config, DType::F64);
  m.make_batch(kBatch);
  const auto losses_of = [&](const Tensor& tokens, const Tensor& targets, bool training) {
    MicrobatchContext microbatch = m.pass(training);
    return test::to_doubles(m.model.loss(tokens, {targets}, 0, microbatch).next.per_token);
  };
  const auto first_sample = [&](const auto& all) {
    std::decay_t<decltype(all)> first;
    for (std::size_t i = 0; i < all.size(); i += kBatch) first.push_back(all[i]);
    return first;
  };
  const auto first_of = [&](const Tensor& all) {
    return test::integers_of(first_sample(read_values<i32>(all)), m.device).view({config.seq_length, 1});
  };
  const test::Numbers alone = losses_of(first_of(m.tokens), first_of(m.targets), false);
  EXPECT_EQ(first_sample(losses_of(m.tokens, m.targets, false)), alone);
  EXPECT_NE(first_sample(losses_of(m.tokens, m.targets, true)), alone) << "nothing is dropped";
}

/// The mean balancing loss is 1 if experts are equally busy, for any number of experts.
TEST(MoeBalanceTest, LossIsOneWhenExpertsAreEquallyBusy) {
  ModelConfig config = with_experts();
  config.moe.aux_loss_coeff = 1;
  TinyModel m(config, DType::F64);
  m.make_batch(2);
  m.model.visit([](Param& param, int) {
    if (param.name.ends_with("router.weight")) ops::fill_zero(param.value);
  });
  m.step();
  for (const auto& [layer, router] : m.model.routers())
    EXPECT_NEAR(router->read_tally().balance_loss, static_cast<double>(2 * config.seq_length), 1e-9);
}

/// Forced balancing must work even if the router would send all tokens to one expert. Evaluations use the router's own
/// choice.
TEST(MoeBalanceTest, IsForcedByRandomChoices) {
  ModelConfig config = with_experts();
  const auto busiest = [&] {
    TinyModel m(config, DType::F32);
    m.make_batch(16);
    m.model.visit([](Param& param, int) {
      if (param.name.ends_with("router.weight")) ops::fill_zero(param.value);
    });
    m.step();
    const std::vector<double>& tokens = m.model.routers()[0].router->read_tally().tokens;
    return *std::max_element(tokens.begin(), tokens.end()) * static_cast<double>(tokens.size()) /
           std::accumulate(tokens.begin(), tokens.end(), 0.0);
  };
  EXPECT_GT(busiest(), 1.9) << "equal experts: the first ones are chosen";
  config.moe.router_force_load_balancing = true;
  EXPECT_LT(busiest(), 1.3);
}

/// Routers compute in fp32 for every model dtype: results equal those of a router in double precision, rounded once.
TEST(MoeRouterTest, ComputesInFp32ForEveryModelType) {
  ModelConfig config = with_experts();
  config.num_layers = 1;
  const auto route = [&](DType dtype) {
    TinyModel m(config, dtype);
    test::Numbers weight(static_cast<std::size_t>(4 * config.hidden_size)),
        values(static_cast<std::size_t>(8 * config.hidden_size));
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<double>(i % 13) / 8 - 0.75;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 11) / 8 - 0.625;
    m.model.visit([&](Param& param, int) {
      if (param.name.ends_with("router.weight")) test::set_values(param.value, weight);
    });
    Tensor x = Tensor::empty({8, config.hidden_size}, dtype, m.device);
    test::set_values(x, values);
    MicrobatchContext microbatch = m.pass(false);
    return test::to_doubles(m.model.routers()[0].router->forward(x, {.count = 8}, microbatch).weights);
  };
  const test::Numbers expected = route(DType::F64);
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    const test::Numbers found = route(dtype);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << name_of(dtype);
  }
}

/// The expert bias affects only the choice: it moves tokens, and the weights of the chosen experts do not change.
TEST(MoeExpertBiasTest, BalancesExpertsOverTime) {
  ModelConfig config = with_experts();
  config.moe.router_score_function = RouterScore::Sigmoid;
  config.moe.router_enable_expert_bias = true;
  config.moe.router_bias_update_rate = 0.01;
  TinyModel m(config, DType::F32);
  m.make_batch(4);
  Router& router = *m.model.routers()[0].router;
  router.allocate_state();
  ASSERT_NE(router.expert_bias(), nullptr);
  test::set_values(*router.expert_bias(), {0.2, 0, 0, -0.2});
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    router.clear_counts();
    m.step();
    const std::vector<double>& tokens = router.read_tally().tokens;
    last = *std::max_element(tokens.begin(), tokens.end());
    if (step == 0) first = last;
    router.end_step(tokens);
  }
  const double even = static_cast<double>(4 * config.seq_length * config.moe.router_topk) / 4;
  EXPECT_GT(first, 1.3 * even) << "there is nothing to balance";
  EXPECT_LT(last, 1.2 * even);
}

TEST(MoeCountsTest, CountsOnlyActiveExpertsPerToken) {
  const ModelConfig config = with_experts();
  const ParameterCounts counts = count_parameters(config);
  EXPECT_EQ(counts.experts, 2 * 4 * 3 * 24 * 32);  // layers, experts, matrices
  EXPECT_EQ(active_parameters(config), counts.total() - counts.experts / 2);
  ModelConfig dense = config;
  dense.moe = {};
  dense.ffn_hidden_size = 48;  // as wide as two experts
  EXPECT_EQ(flops_per_token(config), flops_per_token(dense));
  ModelConfig biased = config;
  biased.add_mlp_bias = true;
  EXPECT_EQ(count_parameters(biased).experts, counts.experts + 2 * 4 * (2 * 24 + 32));
  EXPECT_EQ(flops_per_token(biased), flops_per_token(config)) << "these are of GEMMs only";
}

}  // namespace
}  // namespace mcpp::moe_test
