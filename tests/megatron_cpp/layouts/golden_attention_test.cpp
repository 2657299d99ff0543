// Models with scaled RoPE, sliding windows and other deviations from Llama compared with transformers in double
// precision. tests/huggingface/make_golden.py wrote tests/golden/attention and tests/golden/families.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/layers/kv_cache.h"
#include "tests/support/build.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::Numbers;
using test::TinyModel;

/// Imports a model without the losses that routers add, which the results of transformers do not include.
ImportedModel import_without_losses(const Path& folder, Device& host) {
  ImportedModel imported = import_huggingface(folder, DType::F64, host);
  imported.model.moe.aux_loss_coeff = 0;
  return imported;
}

struct GoldenAttentionTest : testing::TestWithParam<const char*> {
  Path folder = test::source_folder() / "tests/golden" / GetParam();
  test::Hdf5File expected{folder / "expected.h5"};
  CpuDevice host;
  ImportedModel imported = import_without_losses(folder, host);
  TinyModel m{imported.model, DType::F64};

  void SetUp() override {
    std::map<std::string, Tensor> weights;
    for (std::size_t i = 0; i < imported.weights->shards().size(); ++i)
      weights[imported.weights->shards()[i].name] = imported.weights->data(i);
    m.model.visit([&](Param& param, int) { write_bytes(weights.at("model/" + param.name).raw(), param.value); });
    for (const auto& [layer, router] : m.model.routers()) {
      router->allocate_state();
      if (Tensor* bias = router->expert_bias()) write_bytes(weights.at("model/" + router->bias_name()).raw(), *bias);
    }
  }

  /// Returns rows [begin, end) of tokens [batch, s] of a golden file as [s, batch].
  Tensor rows(const test::Hdf5Array<i32>& tokens, i64 begin, i64 end) const {
    std::vector<i32> result;
    for (i64 s = begin; s < end; ++s) {
      for (i64 b = 0; b < tokens.shape[0]; ++b)
        result.push_back(tokens.values[static_cast<std::size_t>(b * tokens.shape[1] + s)]);
    }
    return test::integers_of(result, m.device).view({end - begin, tokens.shape[0]});
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenAttentionTest,
                         testing::Values("attention/linear", "attention/llama3", "attention/yarn",
                                         "attention/yarn_mscale", "attention/yarn_attention_factor",
                                         "attention/mistral", "attention/ministral", "attention/qwen2",
                                         "families/qwen3", "families/qwen3_moe", "families/qwen2_moe", "families/dots1",
                                         "families/deepseek_v2", "families/deepseek_v2_lite", "families/deepseek_v3",
                                         "families/glm4_moe_lite", "families/smollm3", "families/gpt_oss",
                                         "families/llama4", "families/phi3", "families/olmo2", "families/gemma2",
                                         "families/gemma3", "families/gpt_neox", "families/qwen3_next",
                                         "families/qwen3_next_unnormalized", "families/qwen3_5", "families/qwen3_5_moe",
                                         "families/olmo_hybrid", "families/olmo_hybrid_rope", "families/nemotron_h",
                                         "families/nemotron_h_moe", "families/nemotron_h_latent"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

TEST_P(GoldenAttentionTest, LogitsMatchTransformers) {
  const auto tokens = expected.read<i32>("tokens");
  const Numbers golden_values = expected.read<double>("logits").values;  // [batch, s, vocabulary]
  const i64 batch = tokens.shape[0], seq = tokens.shape[1], vocab = imported.model.vocab_size;
  MicrobatchContext context = m.pass(false);
  const Tensor logits = m.model.logits(rows(tokens, 0, seq), context);
  const Numbers computed = test::to_doubles(logits);
  double largest = 0;
  for (i64 s = 0; s < seq; ++s) {
    for (i64 b = 0; b < batch; ++b) {
      for (i64 v = 0; v < vocab; ++v) {
        const double a = computed[static_cast<std::size_t>((s * batch + b) * logits.dim(1) + v)];
        largest = std::max(largest, std::abs(a - golden_values[static_cast<std::size_t>((b * seq + s) * vocab + v)]));
      }
    }
  }
  EXPECT_LE(largest, 1e-11);
}

class GoldenGradientTest : public GoldenAttentionTest {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenGradientTest,
                         testing::Values("families/deepseek_v2", "families/deepseek_v2_lite", "families/deepseek_v3",
                                         "families/glm4_moe_lite"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

/// The loss is the mean over all next tokens.
TEST_P(GoldenGradientTest, GradientsMatchTransformers) {
  const auto tokens = expected.read<i32>("tokens");
  const i64 batch = tokens.shape[0], seq = tokens.shape[1];
  m.tokens = rows(tokens, 0, seq);
  std::vector<i32> next;
  for (i64 s = 1; s <= seq; ++s) {
    for (i64 b = 0; b < batch; ++b)
      next.push_back(s == seq ? -1 : tokens.values[static_cast<std::size_t>(b * seq + s)]);
  }
  m.targets = test::integers_of(next, m.device).view({seq, batch});
  m.samples = {0, 1};
  const auto count = static_cast<double>(batch * (seq - 1));
  EXPECT_NEAR(m.step() / count, expected.read<double>("loss").values.at(0), 1e-11);
  std::map<std::string, Tensor> gradients;
  m.model.visit([&](Param& param, int) { gradients[param.name] = param.main_grad; });
  const Family& family = family_of_config(read_text_file(folder / "config.json"), "config.json");
  const std::vector<WeightRule> rules = weight_map(imported.model, family);
  for (const ForeignParts& foreign : foreign_tensors(rules)) {
    if (!gradients.contains(foreign.parts[0].rule->name)) continue;  // the bias of the experts
    const Numbers ours = test::to_doubles(
                      scatter_rows(foreign, [&](const WeightRule&rule) { return gradients.at(rule.name); })),
                  theirs = expected.read<double>("gradients/" + foreign.tensor.name).values;
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t at = 0; at < ours.size(); ++at)
      ASSERT_NEAR(ours[at] / count, theirs[at], 1e-11) << foreign.tensor.name << " " << at;
  }
}

/// Generates token by token with a cache, from a prompt of eight tokens to well past the windows.
TEST_P(GoldenAttentionTest, GeneratesLikeTransformers) {
  const auto golden_values = expected.read<i32>("generated");
  const i64 batch = golden_values.shape[0], length = golden_values.shape[1], vocab = imported.model.vocab_size;
  KvCache cache(m.model.context(), batch, length);
  for (i64 done = 0; done < length - 1;) {
    const i64 end = done == 0 ? 8 : done + 1;
    MicrobatchContext context = m.pass(false);
    context.positions.first = done;
    context.kv_cache = &cache;
    const Tensor logits = m.model.logits(rows(golden_values, done, end), context);
    const Numbers all = test::to_doubles(logits);
    for (i64 b = 0; b < batch; ++b) {
      const auto first = all.begin() + ((end - done - 1) * batch + b) * logits.dim(1);
      const auto next = std::max_element(first, first + vocab) - first;
      ASSERT_EQ(next, golden_values.values[static_cast<std::size_t>(b * length + end)])
          << "token " << end << " of " << b;
    }
    done = end;
  }
}

/// Compares elements of the gradient of the sum of all losses in every tensor of transformers, as stored by
/// make_golden.py.
struct GoldenGradientSampleTest : GoldenAttentionTest {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenGradientSampleTest,
                         testing::Values("families/smollm3", "families/gpt_oss", "families/llama4",
                                         "families/qwen3_next", "families/qwen3_next_unnormalized", "families/qwen3_5",
                                         "families/qwen3_5_moe", "families/olmo_hybrid", "families/olmo_hybrid_rope",
                                         "families/nemotron_h", "families/nemotron_h_moe",
                                         "families/nemotron_h_latent"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

TEST_P(GoldenGradientSampleTest, MatchesAutograd) {
  constexpr std::size_t kStep = 7919;
  const auto tokens = expected.read<i32>("tokens");
  const i64 batch = tokens.shape[0], seq = tokens.shape[1];
  m.tokens = rows(tokens, 0, seq);
  std::vector<i32> targets = read_values<i32>(rows(tokens, 1, seq));
  targets.resize(static_cast<std::size_t>(seq * batch), -1);
  m.targets = test::integers_of(targets, m.device).view({seq, batch});
  m.samples = {0, 1};
  m.step();
  std::map<std::string, Tensor> gradients;
  m.model.visit([&](Param& param, int) { gradients[param.name] = param.main_grad; });
  const Family& family = family_of_config(read_text_file(folder / "config.json"), "config.json");
  const std::vector<WeightRule> rules = weight_map(imported.model, family);
  const std::vector<ForeignParts> tensors = foreign_tensors(rules);
  for (const ForeignParts& foreign : tensors) {
    if (!gradients.contains(foreign.parts.front().rule->name)) continue;  // the bias of the experts
    const Numbers all =
        test::to_doubles(scatter_rows(foreign, [&](const WeightRule& rule) { return gradients.at(rule.name); }));
    const Numbers golden_values = expected.read<double>("gradients/" + foreign.tensor.name).values;
    for (std::size_t k = 0; k < golden_values.size(); ++k)
      ASSERT_NEAR(all[k * kStep % all.size()], golden_values[k], 1e-9 * std::max(1.0, std::abs(golden_values[k])))
          << foreign.tensor.name << ", element " << k * kStep % all.size();
  }
  EXPECT_GT(tensors.size(), 20u);
}

}  // namespace
}  // namespace mcpp
