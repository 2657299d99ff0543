// A router, its losses and their gradients against PyTorch's autograd in double precision. make_router_golden.py writes
// the golden values in tests/golden/router.
#include <gtest/gtest.h>

#include "model/gpt_model.h"
#include "tests/support/build.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tiny_model.h"

namespace mcpp::router_golden_test {
namespace {

using test::Numbers;
using test::to_doubles;

bool has_bias(const std::string& name) {
  return name.find("with_bias") != std::string::npos;
}

ModelConfig model_of(const std::string& name) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 1;
  MoeConfig& moe = config.moe;
  moe.num_experts = 6;
  moe.aux_loss_coeff = 0.3, moe.z_loss_coeff = 0.2;
  moe.router_pre_softmax = name == "pre_softmax";
  if (name.starts_with("sigmoid")) moe.router_score_function = RouterScore::Sigmoid;
  if (name.starts_with("sqrtsoftplus")) moe.router_score_function = RouterScore::SqrtSoftplus;
  moe.router_enable_expert_bias = has_bias(name);
  if (name.ends_with("by_both")) {
    moe.router_load_balancing_type = OneOrList(std::vector{LoadBalancing::SeqAuxLoss, LoadBalancing::AuxLoss});
    moe.aux_loss_coeff = OneOrList(std::vector{0.75 * 0.3, 0.25 * 0.3});
  }
  if (name.ends_with("by_sample")) moe.router_load_balancing_type = LoadBalancing::SeqAuxLoss;
  return config;
}

class RouterGoldenTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rules, RouterGoldenTest,
                         testing::Values("softmax", "pre_softmax", "sigmoid", "softmax_by_sample", "sigmoid_by_sample",
                                         "sqrtsoftplus", "sigmoid_with_bias_by_sample",
                                         "sqrtsoftplus_with_bias_by_both"),
                         [](const auto& p) { return p.param; });

void expect_near(const Numbers& found, const Numbers& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-11) << what << " " << i;
}

TEST_P(RouterGoldenTest, ChoicesWeightsLossesAndGradientsMatchPyTorch) {
  const std::string name = GetParam();
  const test::Hdf5File golden(test::source_folder() / "tests/golden/router/expected.h5");
  test::TinyModel m(model_of(name), DType::F64);
  m.make_batch(2);
  const auto tensor = [&](const std::string& path) {
    const auto array = golden.read<double>(path);
    Tensor t = Tensor::empty(Shape(array.shape.begin(), array.shape.end()), DType::F64, m.device);
    test::set_values(t, array.values);
    return t;
  };
  Param* weight = nullptr;
  m.model.visit([&](Param& param, int) {
    if (param.name.ends_with("router.weight")) weight = &param;
  });
  ASSERT_NE(weight, nullptr);
  test::set_values(weight->value, golden.read<double>("weight").values);
  m.memory->clear_grads();

  const Tensor x = tensor("x");
  const TokenRows rows{.count = x.dim(0), .batch = 2};
  Router& router = *m.model.routers()[0].router;
  router.allocate_state();
  if (has_bias(name)) test::set_values(*router.expert_bias(), {0.3, -0.2, 0.1, -0.3, 0.2, 0});
  MicrobatchContext microbatch = m.pass(true);
  const Router::Output routed = router.forward(x, rows, microbatch);
  Tensor dx = Tensor::zeros(x.shape(), DType::F64, m.device);
  router.backward(tensor("d_weights"), x, rows, dx, microbatch);

  EXPECT_EQ(read_values<i32>(routed.experts), golden.read<i32>(name + "/experts").values);
  expect_near(to_doubles(routed.weights), golden.read<double>(name + "/weights").values, "weights");
  expect_near({router.read_tally().balance_loss}, golden.read<double>(name + "/balance_loss").values, "balance loss");
  expect_near({router.read_tally().z_loss}, golden.read<double>(name + "/z_loss").values, "z loss");
  expect_near(to_doubles(dx), golden.read<double>(name + "/dx").values, "dx");
  expect_near(to_doubles(weight->main_grad), golden.read<double>(name + "/d_weight").values, "d_weight");
}

}  // namespace
}  // namespace mcpp::router_golden_test
