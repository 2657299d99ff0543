#include "model/gpt_model.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "model/layers/kv_cache.h"
#include "model/memory.h"
#include "model/transformer_layer.h"
#include "tests/support/gpu.h"
#include "tests/support/gradcheck.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::TinyModel;

/// A layer keeps references, so its arguments must not be temporaries.
static_assert(std::is_constructible_v<Mlp, std::string, i64, const ModelContext&, i64>);
static_assert(!std::is_constructible_v<Mlp, std::string, i64, ModelContext, i64>);
static_assert(
    !std::is_constructible_v<SelfAttention, std::string, i64, AttentionSpec, const ModelContext&, RotaryTable>);
static_assert(!std::is_constructible_v<TransformerLayer, i64, const ModelContext&, RotaryTable>);
static_assert(!std::is_constructible_v<KvCache, ModelContext, i64, i64>);

using NamedConfig = test::NamedModel;

std::vector<NamedConfig> families() {
  ModelConfig gpt2 = test::tiny_gpt2(), llama = test::tiny_llama(), odd = test::tiny_gpt2();
  odd.activation_func = ActivationFunction::SquaredReLU;
  odd.position_embedding_type = PositionEmbedding::None;
  odd.num_query_groups = 1;
  odd.kv_channels = 6;
  odd.add_bias_linear = false;
  odd.add_qkv_bias = odd.add_mlp_bias = true;
  ModelConfig exact = test::tiny_llama();
  exact.activation_func = ActivationFunction::GeluErf;
  exact.add_bias_linear = true;
  exact.untie_embeddings_and_output_weights = false;
  std::vector<NamedConfig> all{{"gpt2", gpt2}, {"llama", llama}, {"squared_relu_mqa", odd}, {"gelu_erf_rope", exact}};
  for (NamedConfig variant : test::tiny_variants()) {
    // The divisor of a norm after a branch must not be small relative to the step of the finite differences.
    if (variant.config.norm_position == NormPosition::Post) variant.config.init_method_std = 0.4;
    all.push_back(variant);
  }
  return all;
}

ModelConfig with_dropout(ModelConfig config) {
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.1;
  return config;
}

class GPTModelTest : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Families, GPTModelTest, testing::ValuesIn(families()),
                         [](const auto& p) { return p.param.name; });

TEST_P(GPTModelTest, GradientsMatchFiniteDifferences) {
  TinyModel m(GetParam().config, DType::F64);
  m.make_batch(2);
  m.step();
  m.model.visit([&](Param& param, int) {
    test::expect_gradient([&] { return m.loss(); }, param.value, param.main_grad, param.name, 1e-5, 12);
  });
}

TEST_P(GPTModelTest, DropoutIsIdenticalInForwardAndBackward) {
  TinyModel m(with_dropout(GetParam().config), DType::F64);
  m.make_batch(2);
  m.step();
  const auto loss = [&] {
    MicrobatchContext p = m.pass(true);
    return m.sum(m.model.loss(m.tokens, {m.targets, m.future}, 1, p));
  };
  m.model.visit(
      [&](Param& param, int) { test::expect_gradient(loss, param.value, param.main_grad, param.name, 1e-5, 6); });
}

/// Runs on a CPU and, in programs that support one, on a GPU.
class GPTModelDeviceTest : public testing::TestWithParam<std::tuple<NamedConfig, DeviceType>> {
 protected:
  void SetUp() override {
    if (const std::string why = test::why_missing(std::get<1>(GetParam())); !why.empty()) GTEST_SKIP() << why;
  }
  static const ModelConfig& config() { return std::get<0>(GetParam()).config; }
  static std::unique_ptr<Device> device(int threads = 1) { return test::make_device(std::get<1>(GetParam()), threads); }
};

INSTANTIATE_TEST_SUITE_P(Families, GPTModelDeviceTest,
                         testing::Combine(testing::ValuesIn(families()), testing::ValuesIn(test::device_types())),
                         [](const auto& p) {
                           return test::on_device(std::get<0>(p.param).name, std::get<1>(p.param));
                         });

TEST_P(GPTModelDeviceTest, RecomputationIsBitwiseIdentical) {
  TinyModel plain(device(), with_dropout(config()), DType::F32);
  plain.make_batch(2);
  const double loss = plain.step();
  const test::Numbers expected = plain.gradients();
  using Granularity = Recompute::Granularity;
  using Method = Recompute::Method;
  const Recompute variants[]{
      {.granularity = Granularity::Full, .method = Method::Uniform, .num_layers = 1},
      {.granularity = Granularity::Full, .method = Method::Uniform, .num_layers = 2},
      {.granularity = Granularity::Full, .method = Method::Block, .num_layers = 2},
      {.granularity = Granularity::Selective, .core_attn = true},
      {.granularity = Granularity::Selective, .layernorm = true},
      {.granularity = Granularity::Selective, .mlp_act = true},
      {.granularity = Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true},
  };
  for (const Recompute& recompute : variants) {
    TinyModel m(device(), with_dropout(config()), DType::F32, recompute);
    m.make_batch(2);
    EXPECT_EQ(m.step(), loss);
    EXPECT_EQ(m.gradients(), expected);
  }
}

TEST_P(GPTModelDeviceTest, ThreadsAndDelayedWeightGradientsAreBitwiseIdentical) {
  TinyModel plain(device(), with_dropout(config()), DType::F32);
  plain.make_batch(3);
  const double loss = plain.step();
  const test::Numbers expected = plain.gradients();
  for (int threads : {2, 3}) {
    TinyModel m(device(threads), with_dropout(config()), DType::F32);
    m.make_batch(3);
    EXPECT_EQ(m.step(), loss);
    EXPECT_EQ(m.gradients(), expected);
  }
  EXPECT_EQ(plain.step(true), loss);
  EXPECT_EQ(plain.gradients(), expected);
}

TEST_P(GPTModelDeviceTest, CachedGenerationMatchesLogitsOfFullContext) {
  TinyModel m(device(), config(), DType::F64);
  m.make_batch(1);
  MicrobatchContext full_context = m.pass(false);
  const Tensor expected = m.model.logits(m.tokens, full_context);
  const i64 vocab = expected.dim(1), length = m.tokens.dim(0);
  KvCache cache(m.model.context(), 1, length);
  for (i64 done = 0; done < length;) {
    const i64 count = done == 0 ? 3 : 1;  // a prompt first, then single tokens
    MicrobatchContext p = m.pass(false);
    p.positions.first = done;
    p.kv_cache = &cache;
    const Tensor logits = m.model.logits(m.tokens.slice(done, done + count), p);
    test::expect_close(logits, test::to_doubles(expected.flat(done * vocab, count * vocab)), 1e-12, 1, "logits");
    done += count;
  }
}

TEST_P(GPTModelDeviceTest, LogitsOfRowsEqualThoseOfAllRows) {
  TinyModel m(device(), config(), DType::F64);
  m.make_batch(2);
  MicrobatchContext all_pass = m.pass(false), pass = m.pass(false);
  const test::Numbers all = test::to_doubles(m.model.logits(m.tokens, all_pass));
  const std::vector<i32> rows{7, 0, 7, 3, -1};  // -1: a row of zeros
  const Tensor some = m.model.logits_of_rows(m.tokens, integers(rows, m.model.context().device), pass);
  const auto vocab = static_cast<std::size_t>(some.dim(1));
  test::Numbers expected;
  for (const i32 row : rows) {
    const auto begin = all.begin() + std::max(0, row) * static_cast<i64>(vocab);
    expected.insert(expected.end(), begin, begin + static_cast<i64>(vocab));
  }
  std::fill(expected.end() - static_cast<i64>(vocab), expected.end(), 0);
  test::expect_close(some, expected, 1e-12, 1, "logits");
}

/// A scale of the output layer follows from all rows, also from those that are not returned.
TEST(GPTModelLowPrecisionTest, LogitsOfRowsEqualThoseOfAllRows) {
  const auto logits_of = [](const Fp8Layers& fp8, const std::vector<i32>& rows) {
    TinyModel m(test::tiny_llama(), DType::BF16, {}, 1, nullptr, false, fp8);
    m.make_batch(2);
    MicrobatchContext pass = m.pass(false);
    if (rows.empty()) return test::to_doubles(m.model.logits(m.tokens, pass));
    return test::to_doubles(m.model.logits_of_rows(m.tokens, integers(rows, m.device), pass));
  };
  const auto vocab = static_cast<std::ptrdiff_t>(logits_of({}, {0}).size());
  for (const GemmRecipe recipe : {GemmRecipe::Tensorwise, GemmRecipe::Blockwise, GemmRecipe::Mxfp8}) {
    const Fp8Layers fp8{.modules = {{{"output_layer"}, PassRecipes::of(recipe)}}};
    const test::Numbers all = logits_of(fp8, {});
    EXPECT_NE(all, logits_of({}, {})) << "the output layer is in low precision";
    for (const i32 row : {0, 3, 7}) {
      const auto begin = all.begin() + row * vocab;
      EXPECT_EQ(logits_of(fp8, {row}), test::Numbers(begin, begin + vocab)) << enum_name(recipe) << ", row " << row;
    }
  }
}

TEST_P(GPTModelDeviceTest, LowPrecisionFollowsDoublePrecision) {
  TinyModel exact(config(), DType::F64), low(device(), config(), DType::BF16);
  exact.make_batch(2), low.make_batch(2);
  const double loss = exact.step();
  EXPECT_NEAR(low.step() / loss, 1, 5e-3);
  const test::Numbers a = exact.gradients(), b = low.gradients();
  double dot = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  EXPECT_GT(dot / std::sqrt(aa * bb), 0.999);
  EXPECT_NEAR(std::sqrt(bb / aa), 1, 0.02);
}

TEST(GPTModelBatchTest, MicrobatchesAddUpToBatch) {
  TinyModel batch_model(test::tiny_llama(), DType::F64);
  batch_model.make_batch(4);
  const double loss = batch_model.step();
  const test::Numbers expected = batch_model.gradients();
  batch_model.memory->clear_grads();
  double sum = 0;
  for (i64 b = 0; b < 4; ++b) {
    Tensor tokens = Tensor::empty({batch_model.tokens.dim(0), 1}, DType::I32, batch_model.device),
           targets = Tensor::like(tokens);
    for (i64 s = 0; s < tokens.dim(0); ++s) {
      tokens.data<i32>()[s] = batch_model.tokens.data<i32>()[s * 4 + b];
      targets.data<i32>()[s] = batch_model.targets.data<i32>()[s * 4 + b];
    }
    MicrobatchContext p = batch_model.pass(true);
    p.samples = {batch_model.samples[static_cast<std::size_t>(b)]};
    p.is_last = b == 3;
    sum += batch_model.model.loss(tokens, {targets}, 1, p).next.sum();
    batch_model.model.backward({}, p);
  }
  batch_model.partial_gradients->finish();
  EXPECT_NEAR(sum / loss, 1, 1e-13);
  const test::Numbers parts = batch_model.gradients();
  for (std::size_t i = 0; i < parts.size(); ++i) ASSERT_NEAR(parts[i], expected[i], 1e-12) << i;
}

TEST(GPTModelInitTest, InitialWeightsFollowMegatron) {
  ModelConfig config = test::tiny_gpt2();
  config.hidden_size = 96;
  config.init_method_std = 0.02;
  TinyModel m(config, DType::F32);
  m.model.visit([&](Param& param, int) {
    const test::Numbers x = test::to_doubles(param.value);
    double squares = 0;
    for (double v : x) squares += v * v;
    const double deviation = std::sqrt(squares / static_cast<double>(x.size()));
    if (param.name.ends_with("layernorm.weight")) {
      EXPECT_EQ(deviation, 1) << param.name;
    } else if (param.name.ends_with(".bias")) {
      EXPECT_EQ(deviation, 0) << param.name;
    } else {
      const bool output =
          param.name.find("linear_proj") != std::string::npos || param.name.find("linear_fc2") != std::string::npos;
      EXPECT_NEAR(deviation, output ? 0.02 / std::sqrt(6.0) : 0.02, 0.0012) << param.name;
    }
  });
}

TEST(EstimateMemoryTest, MatchesAllocatedMemory) {
  ModelConfig config = test::tiny_llama();
  config.hidden_size = 128;
  config.ffn_hidden_size = 352;
  config.num_layers = 6;
  config.seq_length = 128;
  config.vocab_size = 512;
  using Granularity = Recompute::Granularity;
  for (const bool untied : {false, true}) {
    config.untie_embeddings_and_output_weights = untied;
    for (const Recompute& recompute :
         {Recompute{}, Recompute{.granularity = Granularity::Full, .num_layers = 2},
          Recompute{.granularity = Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true}}) {
      TinyModel m(config, DType::F32, recompute);
      m.make_batch(4);
      m.step();
      const MemoryEstimate estimate =
          estimate_memory(config, {.recompute = recompute, .micro_batch_size = 4}, {}, single_rank_spec(config));
      const auto peak = [&](MemoryClass c) {
        return static_cast<double>(m.device.memory().by_class[static_cast<std::size_t>(c)].peak);
      };
      EXPECT_NEAR(peak(MemoryClass::Params) / estimate.params, 1, 0.05);
      EXPECT_NEAR(peak(MemoryClass::Grads) / estimate.grads, 1, 0.05);
      EXPECT_NEAR(peak(MemoryClass::Activations) / estimate.activations, 1, 0.05);
    }
  }
}

}  // namespace
}  // namespace mcpp
