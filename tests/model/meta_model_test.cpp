#include "model/meta_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tensor/transfer.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

ModelConfig config_of(bool is_llama, bool is_untied) {
  ModelConfig config{.num_layers = 3, .hidden_size = 32, .num_attention_heads = 4, .seq_length = 16, .vocab_size = 50};
  config.untie_embeddings_and_output_weights = is_untied;
  if (!is_llama) return config;
  config.num_query_groups = 2;
  config.position_embedding_type = PositionEmbedding::Rope;
  config.normalization = Normalization::RMSNorm;
  config.activation_func = ActivationFunction::SwiGLU;
  config.add_bias_linear = false;
  return config;
}

using NamesAndShapes = std::vector<std::pair<std::string, Shape>>;

TEST(MetaModelTest, HasSameParametersAsRealModel) {
  for (const bool is_llama : {false, true}) {
    for (const bool is_untied : {false, true}) {
      const ModelConfig config = config_of(is_llama, is_untied);
      NamesAndShapes on_meta_device, real;
      visit_meta_params(config, [&](const Param& param) { on_meta_device.emplace_back(param.name, param.box.global); });
      CpuDevice device;
      const auto self = make_self_communicator();
      GPTModel model({.config = config, .recompute = {}, .device = device, .tp = *self});
      model.visit([&](Param& param, int) { real.emplace_back(param.name, param.box.global); });
      EXPECT_EQ(on_meta_device, real) << is_llama << is_untied;
      EXPECT_EQ(device.memory().total.peak, 0) << "nor does a real one own any before it is given memory";
    }
  }
}

TEST(MetaModelTest, TensorsHaveSizesAndNoMemory) {
  MetaModelContext meta({.tensor_parallel = 2});
  const ModelContext context = meta.context(config_of(true, false));
  EXPECT_EQ(context.tp.size(), 2);
  constexpr i64 kElements = i64{1} << 50;
  const Tensor huge = Tensor::zeros({kElements}, DType::F32, context.device);
  Tensor gathered = Tensor::like(huge, {2 * kElements});
  context.tp.all_gather(huge, gathered).wait();
  EXPECT_EQ(context.device.memory().total.bytes, 12 * kElements);
  EXPECT_EQ(read_values<float>(huge.flat(5, 2)), std::vector<float>(2, 0));
  EXPECT_NE(huge.raw(), gathered.raw());
}

// The model has a thousand layers that do not fit in the memory of any host.
TEST(MetaModelTest, HandlesHugeModels) {
  ModelConfig config = config_of(true, false);
  config.num_layers = 1000;
  config.hidden_size = 1'000'000;
  config.max_position_embeddings = 100'000'000;
  i64 matrices = 0;
  visit_meta_params(config, [&](const Param& param) { matrices += !param.matrices.empty(); });
  EXPECT_EQ(matrices, 4 * config.num_layers);
}

/// Returns the standard deviation of initial values by name.
std::map<std::string, double> init_stds(const ModelConfig& config) {
  std::map<std::string, double> result;
  visit_meta_params(config, [&](const Param& param) { result[param.name] = param.init_std; });
  return result;
}

TEST(MetaModelTest, DepthScalesInitialOutputProjections) {
  ModelConfig config = config_of(true, false);
  config.moe.num_experts = 2;
  config.moe.layer_freq = std::vector<i64>{0, 1, 0};
  config.mtp_num_layers = 1;
  const auto expect = [&](DepthInit depth_init, const std::vector<double>& branches) {
    config.depth_init = depth_init;
    const std::map<std::string, double> stds = init_stds(config);
    const auto expect_std = [&](const std::string& name, double count) {
      EXPECT_DOUBLE_EQ(stds.at(name), config.init_method_std / std::sqrt(count))
          << name << " " << enum_name(depth_init);
    };
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const std::string prefix = str("decoder.layers.", layer, ".");
      expect_std(prefix + "self_attention.linear_proj.weight", branches[layer]);
      expect_std(prefix + (layer == 1 ? "mlp.experts.linear_fc2.weight" : "mlp.linear_fc2.weight"), branches[layer]);
      expect_std(prefix + "self_attention.linear_qkv.weight", 1);
      expect_std(prefix + (layer == 1 ? "mlp.experts.linear_fc1.weight" : "mlp.linear_fc1.weight"), 1);
    }
    expect_std("mtp.layers.0.transformer_layer.mlp.linear_fc2.weight", branches.back());
  };
  expect(DepthInit::Total, {6, 6, 6});
  expect(DepthInit::Layer, {2, 4, 6});
  expect(DepthInit::None, {1, 1, 1});
  // Layers with one branch each.
  ModelConfig hybrid = config_of(true, false);
  hybrid.num_layers = 4;
  hybrid.hybrid_layer_pattern = "*-*-";
  hybrid.depth_init = DepthInit::Layer;
  EXPECT_DOUBLE_EQ(init_stds(hybrid).at("decoder.layers.2.self_attention.linear_proj.weight"),
                   hybrid.init_method_std / std::sqrt(3));
}

// The byte counts of these models exceed 64 bits.
TEST(MetaModelTest, RejectsSizesThatOverflow) {
  ModelConfig wide = config_of(true, false), experts = wide, usual = wide;
  wide.num_layers = 100'000, wide.hidden_size = 1'000'000;
  experts.moe.num_experts = 100'000, experts.ffn_hidden_size = 10'000'000, experts.hidden_size = 1'000'000;
  experts.num_layers = 100;
  const auto refusal = [](const std::function<void()>& f) { return test::error_with(ExitCode::OutOfMemory, f); };
  const auto count = [](const ModelConfig& config) { visit_meta_params(config, [](const Param&) {}); };
  EXPECT_CONTAINS(refusal([&] { count(wide); }), "num_layers = 100000, hidden_size = 1000000");
  EXPECT_CONTAINS(refusal([&] { count(experts); }), "num_experts = 100000");
  EXPECT_CONTAINS(refusal([&] { check_countable(usual, i64{1} << 50); }), "microbatch of 1125899906842624 tokens");
  check_countable(usual, i64{1} << 30);
}

}  // namespace
}  // namespace mcpp
