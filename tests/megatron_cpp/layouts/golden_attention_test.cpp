// Models with scaled RoPE, sliding windows and other deviations from Llama compared with transformers in double
// precision. tests/huggingface/make_golden.py wrote tests/golden/attention, tests/golden/families and tests/golden/mtp;
// make_quantized.py wrote tests/golden/quantized.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/layers/kv_cache.h"
#include "tests/support/build.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::Numbers;
using test::TinyModel;

/// Compares elements of a gradient in the layout of a foreign tensor with those that make_golden.py stored.
void expect_sampled(const Numbers& all, const test::Hdf5File& expected, const std::string& name, double tolerance) {
  constexpr std::size_t kStep = 7919;
  const Numbers golden_values = expected.read<double>("gradients/" + name).values;
  for (std::size_t k = 0; k < golden_values.size(); ++k)
    ASSERT_NEAR(all[k * kStep % all.size()], golden_values[k], tolerance * std::max(1.0, std::abs(golden_values[k])))
        << name << ", element " << k * kStep % all.size();
}

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

  /// Returns the largest difference between logits and those of the golden file.
  double largest_difference() {
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
    return largest;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenAttentionTest,
                         testing::Values("attention/linear", "attention/llama3", "attention/yarn",
                                         "attention/yarn_mscale", "attention/yarn_attention_factor",
                                         "attention/mistral", "attention/ministral", "attention/qwen2",
                                         "families/qwen3", "families/qwen3_moe", "families/qwen2_moe", "families/dots1",
                                         "families/deepseek_v2", "families/deepseek_v2_lite", "families/deepseek_v3",
                                         "families/glm4_moe_lite", "families/kimi_linear",
                                         "families/kimi_linear_latent_queries", "families/smollm3", "families/gpt_oss",
                                         "families/llama4", "families/phi3", "families/olmo2", "families/gemma2",
                                         "families/gemma3", "families/gpt_neox", "families/qwen3_next",
                                         "families/qwen3_next_unnormalized", "families/qwen3_5", "families/qwen3_5_moe",
                                         "families/olmo_hybrid", "families/olmo_hybrid_rope", "families/nemotron_h",
                                         "families/nemotron_h_moe", "families/nemotron_h_latent"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

TEST_P(GoldenAttentionTest, LogitsMatchTransformers) {
  EXPECT_LE(largest_difference(), 1e-11);
}

/// Models with quantized weights, which both programs dequantize.
class GoldenQuantizedTest : public GoldenAttentionTest {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenQuantizedTest,
                         testing::Values("quantized/deepseek_v3", "quantized/gpt_oss", "quantized/tensor",
                                         "quantized/channel", "quantized/group", "quantized/block"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

TEST_P(GoldenQuantizedTest, LogitsMatchTransformers) {
  EXPECT_LE(largest_difference(), 1e-11);
}

class GoldenGradientTest : public GoldenAttentionTest {};
INSTANTIATE_TEST_SUITE_P(Models, GoldenGradientTest,
                         testing::Values("families/deepseek_v2", "families/deepseek_v2_lite", "families/deepseek_v3",
                                         "families/glm4_moe_lite", "families/kimi_linear",
                                         "families/kimi_linear_latent_queries"),
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
    ASSERT_NO_FATAL_FAILURE(expect_sampled(all, expected, foreign.tensor.name, 1e-9));
  }
  EXPECT_GT(tensors.size(), 20u);
}

/// Layers for multi-token prediction compared with transformers' MtpModel: the loss of every token at every distance,
/// and the gradient of their weighted sum.
struct GoldenMtpTest : GoldenAttentionTest {
  /// Makes the tokens and targets of the golden file.
  void make_batch() {
    const auto all = expected.read<i32>("tokens");
    const i64 seq = all.shape[1];
    const auto shifted = [&](i64 distance, i32 absent) {
      std::vector<i32> values = read_values<i32>(rows(all, distance, seq));
      values.resize(static_cast<std::size_t>(seq * all.shape[0]), absent);
      return test::integers_of(values, m.device).view({seq, all.shape[0]});
    };
    m.tokens = rows(all, 0, seq), m.targets = shifted(1, -1);
    m.samples = {0, 1};
    for (i64 k = 1; k <= imported.model.mtp_num_layers; ++k) m.future.push_back({shifted(k, 0), shifted(k + 1, -1)});
  }
};
INSTANTIATE_TEST_SUITE_P(Models, GoldenMtpTest,
                         testing::Values("mtp/deepseek_v3", "mtp/glm4_moe_lite", "mtp/qwen3_next",
                                         "mtp/qwen3_next_dense", "mtp/qwen3_5", "mtp/qwen3_5_moe", "mtp/nemotron_h"),
                         [](const auto& p) { return Path(p.param).filename().string(); });

TEST_P(GoldenMtpTest, LossesMatchTransformers) {
  make_batch();
  MicrobatchContext context = m.pass(true);
  const GPTModel::Losses losses = m.model.loss(m.tokens, {m.targets, m.future}, 1, context);
  const auto compare = [&](const TokenLosses& computed, std::size_t distance) {
    const auto golden_values = expected.read<double>(str("losses/", distance));  // [batch, s - 1 - distance]
    const Numbers ours = test::to_doubles(computed.per_token);
    const i64 batch = golden_values.shape[0], seq = golden_values.shape[1];
    ASSERT_EQ(seq, m.tokens.dim(0) - 1 - static_cast<i64>(distance));
    for (i64 b = 0; b < batch; ++b)
      for (i64 s = 0; s < seq; ++s)
        ASSERT_NEAR(ours[static_cast<std::size_t>(s * batch + b)],
                    golden_values.values[static_cast<std::size_t>(b * seq + s)], 1e-10)
            << "token " << s << " of " << b << " at distance " << distance;
  };
  compare(losses.next, 0);
  ASSERT_EQ(static_cast<i64>(losses.future.size()), imported.model.mtp_num_layers);
  for (std::size_t k = 0; k < losses.future.size(); ++k) compare(losses.future[k], k + 1);
}

TEST_P(GoldenMtpTest, GradientsMatchAutograd) {
  make_batch();
  m.step();
  std::map<std::string, Tensor> gradients;
  m.model.visit([&](Param& param, int) { gradients[param.name] = param.main_grad; });
  const Family& family = family_of_config(read_text_file(folder / "config.json"), "config.json");
  const std::vector<WeightRule> rules = weight_map(imported.model, family);
  std::size_t predicted = 0;
  for (const ForeignParts& foreign : foreign_tensors(rules)) {
    const WeightRule& rule = *foreign.parts.front().rule;
    if (!gradients.contains(rule.name) || std::ranges::count(rule.copies, foreign.tensor.name) > 0) continue;
    const Numbers all =
        test::to_doubles(scatter_rows(foreign, [&](const WeightRule& part) { return gradients.at(part.name); }));
    ASSERT_NO_FATAL_FAILURE(expect_sampled(all, expected, foreign.tensor.name, 1e-9));
    predicted += rule.name.starts_with("mtp.") ? 1 : 0;
  }
  EXPECT_GE(predicted, 15u);
}

/// Imported layers for multi-token prediction, trained for one step on several ranks.
class GoldenMtpLayoutsTest : public testing::TestWithParam<std::tuple<const char*, test::RunLayout>> {
 protected:
  /// Returns the mean losses of the golden file by distance.
  Numbers mean_losses() const {
    Numbers means;
    for (i64 distance = 0; distance <= imported_.model.mtp_num_layers; ++distance) {
      const Numbers losses = expected_.read<double>(str("losses/", distance)).values;
      means.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size()));
    }
    return means;
  }
  /// Runs one step with a learning rate of 1.
  test::RunResult run() {
    for (std::size_t i = 0; i < imported_.weights->shards().size(); ++i)
      initial_[imported_.weights->shards()[i].name.substr(std::string_view("model/").size())] =
          test::to_doubles(imported_.weights->data(i));
    const i64 length = tokens_.shape[1];
    imported_.model.seq_length = length - 1;
    test::RunTask task{.model = imported_.model,
                       .dtype = DType::F64,
                       .optimizer = {},
                       .global_batch_size = tokens_.shape[0],
                       .steps = 1,
                       .lr = [](i64) { return 1.0; },
                       .weight_decay = 0,
                       .tokens =
                           [&](i64 sample) {
                             const auto first = tokens_.values.begin() + sample * length;
                             return std::vector<i32>(first, first + length);
                           },
                       .initial = &initial_};
    task.optimizer.optimizer = OptimizerKind::Sgd;
    task.optimizer.clip_grad = 0;
    return run_layout(task, std::get<1>(GetParam()));
  }

  Path folder_ = test::source_folder() / "tests/golden/mtp" / std::get<0>(GetParam());
  test::Hdf5File expected_{folder_ / "expected.h5"};
  test::Hdf5Array<i32> tokens_ = expected_.read<i32>("tokens");
  CpuDevice host_;
  ImportedModel imported_ = import_without_losses(folder_, host_);
  test::Weights initial_;
};

const test::RunLayout kMtpLayouts[]{{"one_rank", {}},
                                    {"tp2", {.tp = 2}},
                                    {"pp2", {.pp = 2, .stages = "Et|tmL"}},
                                    {"tp2_pp2", {.tp = 2, .pp = 2, .stages = "Ett|mL"}},
                                    {"dp2_zero3", {.dp = 2, .zero_stage = 3}}};
INSTANTIATE_TEST_SUITE_P(Models, GoldenMtpLayoutsTest,
                         testing::Combine(testing::Values("qwen3_next", "qwen3_5", "qwen3_5_moe"),
                                          testing::ValuesIn(kMtpLayouts)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

TEST_P(GoldenMtpLayoutsTest, LossesAndGradientsMatchTransformers) {
  const test::RunResult result = run();
  const Numbers means = mean_losses();
  ASSERT_EQ(result.losses.size(), means.size());
  for (std::size_t i = 0; i < means.size(); ++i) EXPECT_NEAR(result.losses[i], means[i], 1e-10) << "distance " << i;
  const auto targets = static_cast<double>(tokens_.shape[0] * (tokens_.shape[1] - 1));
  const Family& family = family_of_config(read_text_file(folder_ / "config.json"), "config.json");
  const std::vector<WeightRule> rules = weight_map(imported_.model, family);
  std::size_t predicted = 0;
  for (const ForeignParts& foreign : foreign_tensors(rules)) {
    const Numbers all = test::to_doubles(scatter_rows(foreign, [&](const WeightRule& rule) {
      Tensor gradient = Tensor::empty(rule.shape, DType::F64, host_);
      const Numbers &before = initial_.at(rule.name), &after = result.weights.at(rule.name);
      for (std::size_t at = 0; at < before.size(); ++at)
        gradient.data<double>()[at] = (before[at] - after[at]) * targets;
      return gradient;
    }));
    ASSERT_NO_FATAL_FAILURE(expect_sampled(all, expected_, foreign.tensor.name, 1e-8));
    predicted += foreign.parts.front().rule->name.starts_with("mtp.") ? 1 : 0;
  }
  EXPECT_GE(predicted, 15u);
}

}  // namespace
}  // namespace mcpp
