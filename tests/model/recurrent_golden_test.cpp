// Recurrent mixers against transformers in double precision: Gated DeltaNet of Qwen3-Next, Kimi Delta Attention of
// Kimi-Linear and Mamba-2 of Nemotron-H.
// make_recurrent_golden.py writes the golden values in tests/golden/recurrent.
#include <gtest/gtest.h>

#include "model/layers/recurrent_mixer.h"
#include "tests/support/build.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tiny_model.h"

namespace mcpp::recurrent_golden_test {
namespace {

using test::Numbers;

ModelConfig model_of(const std::string& name) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 1;
  if (name == "gated_deltanet") {
    config.hybrid_layer_pattern = "G";
    config.norm_epsilon = 1e-6;
    config.recurrent.linear_num_key_heads = 2, config.recurrent.linear_num_value_heads = 6;
    config.recurrent.linear_key_head_dim = 5, config.recurrent.linear_value_head_dim = 6;
  } else if (name == "kimi_delta_attention") {
    config.hybrid_layer_pattern = "K";
    config.recurrent.linear_num_key_heads = config.recurrent.linear_num_value_heads = 3;
    config.recurrent.linear_key_head_dim = config.recurrent.linear_value_head_dim = 6;
  } else {
    config.hybrid_layer_pattern = "M";
    config.recurrent.mamba_num_groups = 2, config.recurrent.mamba_num_heads = 4;
    config.recurrent.mamba_head_dim = 6, config.recurrent.mamba_state_dim = 5;
  }
  return config;
}

/// Expects that the largest error is below a bound relative to the largest value.
void expect_near(const Tensor& found, const Numbers& expected, const std::string& what) {
  const Numbers values = test::to_doubles(found);
  ASSERT_EQ(values.size(), expected.size()) << what;
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(values[i], expected[i], 1e-12 * largest) << what << " " << i;
}

class RecurrentGoldenTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Mixers, RecurrentGoldenTest,
                         testing::Values("gated_deltanet", "kimi_delta_attention", "mamba"),
                         [](const auto& p) { return p.param; });

TEST_P(RecurrentGoldenTest, OutputAndGradientsMatchTransformers) {
  const std::string name = GetParam();
  const test::Hdf5File golden(test::source_folder() / "tests/golden/recurrent/expected.h5");
  const auto values = [&](const std::string& path) { return golden.read<double>(name + "/" + path); };
  test::TinyModel m(model_of(name), DType::F64);
  const BlockSpec spec = block_spec(m.model.context().config, 0);
  RecurrentMixer mixer("mixer", 0, *spec.recurrent(), m.model.context());
  std::size_t params = 0;
  mixer.visit([&](Param& param) {
    const auto expected = values("weights/" + param.name.substr(std::string("mixer.").size()));
    ASSERT_EQ(param.box.shape, Shape(expected.shape.begin(), expected.shape.end())) << param.name;
    param.value = Tensor::empty(param.box.shape, DType::F64, m.device);
    param.main_grad = test::garbage(param.box.shape, DType::F64, m.device);
    test::set_values(param.value, expected.values);
    ++params;
  });
  EXPECT_EQ(params, golden.names(name + "/weights").size());

  const auto tensor = [&](const std::string& path) {
    const auto array = values(path);
    return test::tensor_of(array.values, Shape(array.shape.begin(), array.shape.end()), DType::F64, m.device);
  };
  MicrobatchContext microbatch;
  expect_near(mixer.forward(tensor("x"), microbatch), values("y").values, "y");
  expect_near(mixer.backward(tensor("dy"), microbatch), values("dx").values, "dx");
  mixer.visit([&](Param& param) {
    expect_near(param.main_grad, values("gradients/" + param.name.substr(std::string("mixer.").size())).values,
                param.name);
  });
}

}  // namespace
}  // namespace mcpp::recurrent_golden_test
