// Tensors that a layer saves for its backward pass, as shown by the device's memory table, against formulas in
//   s sequence, b micro batch, h hidden, a heads, g query groups, d head width, f ffn, t tensor-parallel ranks
// as in Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
#include "model/memory.h"

#include <gtest/gtest.h>

#include "comm/local.h"
#include "model/layer_memory.h"
#include "model/layers/recompute.h"
#include "model/transformer_layer.h"
#include "parallel/dp/zero.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

struct Split {
  i64 tp;
  bool sequence_parallel;
};
constexpr Split kSplits[]{{1, false}, {2, false}, {4, false}, {2, true}, {4, true}};

Recompute selective(bool core_attn, bool layernorm, bool mlp_act) {
  return {.granularity = Recompute::Granularity::Selective,
          .core_attn = core_attn,
          .layernorm = layernorm,
          .mlp_act = mlp_act};
}
const Recompute kRecomputes[]{{},
                              selective(true, false, false),
                              selective(false, true, false),
                              selective(false, false, true),
                              selective(true, true, true),
                              {.granularity = Recompute::Granularity::Full}};

/// Sizes for which the device's pool rounds up no tensor: the table then shows exactly the saved bytes.
ModelConfig gpt2() {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.seq_length = 32;
  config.vocab_size = 128;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}
ModelConfig llama(i64 groups) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 4;
  config.hidden_size = 64;
  config.ffn_hidden_size = 192;
  config.num_attention_heads = 8;
  config.num_query_groups = groups;
  config.seq_length = 32;
  config.vocab_size = 128;
  return config;
}
ModelConfig model_of(const std::string& name) {
  if (name == "gpt2") return gpt2();
  ModelConfig config = llama(name == "llama_1_group" ? 1 : 4);
  config.qk_layernorm = name == "head_norms" || name == "all_heads_norms";
  config.qk_layernorm_all_heads = name == "all_heads_norms";
  if (name == "output_gate") config.attention_output_gate = {1};
  if (name == "post_norms") config.norm_position = NormPosition::Post;
  if (name == "all_heads_norms") config.norm_position = NormPosition::Both;
  config.use_parallel_residual = name == "parallel";
  return config;
}

constexpr i64 kBatch = 2;

/// Returns the bytes on the device between the forward and the backward pass of one layer, including its input. The
/// bytes reported by the saved tensors must be equal.
i64 measured(const ModelConfig& config, DType dtype, const Recompute& recompute, Split split, Communicator& tp) {
  CpuDevice device;
  const ModelContext context{.config = config,
                             .dtype = dtype,
                             .recompute = recompute,
                             .device = device,
                             .tp = tp,
                             .sequence_parallel = split.sequence_parallel};
  RotaryTable rotary(context);
  std::unique_ptr<Module> layer = std::make_unique<TransformerLayer>(0, context, rotary);
  if (recompute.granularity == Recompute::Granularity::Full) {
    std::vector<std::unique_ptr<Module>> group;
    group.push_back(std::move(layer));
    layer = std::make_unique<RecomputedLayers>(std::move(group));
  }
  const auto self = make_self_communicator();
  std::vector<UnitParam> params;
  layer->visit([&](Param& param) { params.push_back({&param, 0}); });
  const auto memory = make_param_and_grad_buffer(params, dtype, device, {*self, *self}, {});
  layer->visit([](Param& param) { initialize(param, 3); });

  const auto activations = [&] {
    const auto& table = device.memory().by_class;
    return table[static_cast<std::size_t>(MemoryClass::Activations)].bytes;
  };
  const Shape input{config.seq_length / (split.sequence_parallel ? split.tp : 1), kBatch, config.hidden_size};
  MicrobatchContext first;  // builds the rotary table, which belongs to the model
  first.saves_for_backward = false;
  first.samples = {0, 1};
  layer->forward(Tensor::zeros(input, dtype, device), first);

  const i64 before = activations();
  MicrobatchContext microbatch;
  microbatch.samples = {0, 1};
  Tensor x = Tensor::zeros(input, dtype, device);
  Tensor y = layer->forward(x, microbatch);
  const Shape shape = y.shape();
  x = y = {};
  const i64 kept = activations() - before;
  EXPECT_EQ(microbatch.saved_tensors.bytes(), kept);
  layer->backward(Tensor::zeros(shape, dtype, device), microbatch);
  EXPECT_EQ(activations(), before) << "something is kept after backward";
  return kept;
}

/// Returns the formula in bytes: elements of e bytes each, and fp32 statistics of each norm and of the softmax of
/// attention.
i64 formula(const ModelConfig& c, i64 e, const Recompute& recompute, Split split) {
  const i64 s = c.seq_length, b = kBatch, h = c.hidden_size, a = c.num_attention_heads.first(), g = c.query_groups(0),
            d = c.head_dim(), f = c.ffn(0), t = split.tp, parts = split.sequence_parallel ? t : 1;
  if (recompute.granularity == Recompute::Granularity::Full) return s * b * h / parts * e;
  const i64 means_and_deviations = c.normalization == Normalization::LayerNorm ? 2 : 1;
  const i64 norm = s * b * (h * e + means_and_deviations * 4) / parts;  // its input
  const bool pre = c.norm_position != NormPosition::Post, post = c.norm_position != NormPosition::Pre;
  const i64 norms = (pre ? 2 * norm : 0) + (post ? 2 * norm : 0) -
                    (c.use_parallel_residual ? s * b * h * e / parts : 0);              // both branches share the input
  const i64 norm_outputs = pre && recompute.layernorm ? 0 : s * b * 2 * h * e / parts;  // inputs of QKV and fc1
  const i64 heads = a / t + std::max(g, t) / t;                                         // queries and keys
  const i64 head_norms =
      c.qk_layernorm ? s * b * (heads * d * e + (c.qk_layernorm_all_heads ? 2 : heads) * means_and_deviations * 4) : 0;
  const i64 qkv = s * b * (a + 2 * std::max(g, t)) * d / t * e;                      // ranks share the keys of a group
  const i64 attention = s * b * a / t * ((recompute.core_attn ? 0 : d * e) + 4);     // output, log of sum of exp
  const i64 gate = c.attention_output_gate.empty() ? 0 : s * b * 2 * a * d / t * e;  // gate and gated output
  const i64 mlp = s * b * ((c.is_gated() ? 2 : 1) * f + (recompute.mlp_act ? 0 : f)) / t * e;  // input of GELU, of fc2
  return norms + norm_outputs + qkv + head_norms + attention + gate + mlp;
}

class LayerMemoryTest : public testing::TestWithParam<std::tuple<const char*, DType, Recompute, Split>> {};

TEST_P(LayerMemoryTest, MatchesFormula) {
  const auto& [name, dtype, recompute, split] = GetParam();
  const ModelConfig config = model_of(name);
  const i64 expected = formula(config, size_of(dtype), recompute, split);
  const ActivationSetup setup{dtype, recompute, kBatch, split.tp, split.sequence_parallel};
  const StageContents one_layer{.first_layer = 0, .end_layer = 1, .has_embedding = false, .has_output = false};
  EXPECT_EQ(stage_activations(config, setup, one_layer).saved, expected);
  run_local_ranks(static_cast<int>(split.tp),
                  [&, dtype = dtype, recompute = recompute, split = split](Communicator& tp, int) {
                    EXPECT_EQ(measured(config, dtype, recompute, split, tp), expected);
                  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayerMemoryTest,
                         testing::Combine(testing::Values("gpt2", "llama", "llama_1_group", "head_norms",
                                                          "all_heads_norms", "output_gate", "post_norms", "parallel"),
                                          testing::Values(DType::F32, DType::BF16), testing::ValuesIn(kRecomputes),
                                          testing::ValuesIn(kSplits)));

/// The paper counts 34 sbh + 5 a s^2 b bytes (16 bit). Here the scores, their softmax and its dropout (2 + 2 + 1 bytes
/// each) are never stored (FlashAttention), and neither are the masks of the two dropouts of the residual stream (1
/// byte each), which are drawn again from their counters. Instead there are 4 fp32 values per token for the norms,
/// which the paper neglects, and one per row of scores.
TEST(Gpt2LayerMemoryTest, MatchesPaperWithoutScoresAndMasks) {
  const ModelConfig c = gpt2();
  const i64 s = c.seq_length, b = kBatch, h = c.hidden_size, a = c.num_attention_heads.first();
  const i64 paper = 34 * s * b * h + 5 * a * s * s * b, scores = 5 * a * s * s * b, masks = 2 * s * b * h,
            statistics = 16 * s * b + 4 * a * s * b;
  const auto self = make_self_communicator();
  const i64 ours = measured(c, DType::BF16, {}, {1, false}, *self);
  EXPECT_EQ(ours, paper - scores - masks + statistics);
  EXPECT_EQ(ours, 32 * s * b * h + 16 * s * b + 4 * a * s * b);
}

TEST(Fp8LayerMemoryTest, DiffersFromOtherLayers) {
  ModelConfig c = gpt2();
  c.num_layers = 4;
  ActivationSetup setup{.dtype = DType::BF16};
  setup.fp8 = {.first = 1, .end = c.num_layers - 1};
  LayerSizes sizes(c, setup);
  EXPECT_EQ(sizes.layer(0).saved, sizes.layer(c.num_layers - 1).saved);
  EXPECT_NE(sizes.layer(0).saved, sizes.layer(1).saved);
}

/// Table 2 of the paper: with tensor parallelism alone 10 sbh stay unsharded on every rank (here 8, without the masks),
/// with sequence parallelism nothing does.
TEST(Gpt2LayerMemoryTest, IsShardedCompletelyOnlyWithSequenceParallelism) {
  const ModelConfig c = gpt2();
  const i64 s = c.seq_length, b = kBatch, h = c.hidden_size, a = c.num_attention_heads.first(), t = 4;
  const ActivationSetup tp{.dtype = DType::BF16, .recompute = {}, .micro_batch_size = b, .tensor_parallel = t};
  ActivationSetup sp = tp;
  sp.sequence_parallel = true;
  EXPECT_EQ(LayerSizes(c, tp).layer(0).saved, 8 * s * b * h + 24 * s * b * h / t + 16 * s * b + 4 * a * s * b / t);
  EXPECT_EQ(LayerSizes(c, sp).layer(0).saved, (32 * s * b * h + 16 * s * b + 4 * a * s * b) / t);
}

}  // namespace
}  // namespace mcpp
