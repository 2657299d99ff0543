// Memory of passes that score predictions, compared with the peak of a pass.
#include <gtest/gtest.h>

#include <numeric>

#include "megatron_cpp/inference/window_scorer.h"
#include "tests/support/tiny_model.h"

namespace mcpp::scoring_memory_test {
namespace {

using test::TinyModel;

constexpr i64 kSeq = 64, kBatch = 4;

/// Returns a model whose logits need more memory than its layers.
ModelConfig with_large_vocabulary() {
  ModelConfig config = test::tiny_llama();
  config.seq_length = kSeq;
  config.vocab_size = 16384;
  return config;
}

TinyModel make_model(const Fp8Layers& fp8 = {}) {
  return {with_large_vocabulary(), fp8.is_empty() ? DType::F32 : DType::BF16, {}, 1, nullptr, false, fp8};
}

/// Returns the estimate without weights.
double activation_bytes(TinyModel& m, i64 scored) {
  i64 weights = 0;
  m.model.visit([&](const Param& param, int) { weights += param.value.bytes(); });
  return scoring_bytes(m.model, {.seq = kSeq, .batch = kBatch, .scored = scored}) - static_cast<double>(weights);
}

TEST(ScoringMemoryTest, CountsLogitsOfScoredPredictions) {
  TinyModel m = make_model();
  const double all = activation_bytes(m, kSeq * kBatch);
  EXPECT_DOUBLE_EQ(activation_bytes(m, 128), all / 2);
  EXPECT_DOUBLE_EQ(activation_bytes(m, 97), all / 2) << "padded to a multiple of 32";
  EXPECT_DOUBLE_EQ(activation_bytes(m, 1), activation_bytes(m, 32));
  EXPECT_GE(activation_bytes(m, 0), 0);
}

TEST(ScoringMemoryTest, IsMinimumOfPeak) {
  TinyModel m = make_model();
  m.make_batch(kBatch);
  for (const i64 scored : {32, 128, 256}) {
    std::vector<i32> rows(static_cast<std::size_t>(scored));
    std::iota(rows.begin(), rows.end(), 0);
    const Tensor on_device = integers(rows, m.device);
    const i64 before = m.device.memory().total.bytes;
    m.device.reset_peak();
    MicrobatchContext pass = m.pass(false);
    m.model.logits_of_rows(m.tokens, on_device, pass);
    const auto peak = static_cast<double>(m.device.memory().total.peak - before);
    EXPECT_LE(activation_bytes(m, scored), peak) << scored;
    EXPECT_GE(activation_bytes(m, scored), 0.8 * peak) << scored;
  }
}

/// Scales follow from all predictions, so that their logits are computed.
TEST(ScoringMemoryTest, CountsAllLogitsInLowPrecision) {
  TinyModel m = make_model({.modules = {{{"output_layer"}, PassRecipes::of(GemmRecipe::Tensorwise)}}});
  EXPECT_EQ(activation_bytes(m, 1), activation_bytes(m, kSeq * kBatch));
}

}  // namespace
}  // namespace mcpp::scoring_memory_test
