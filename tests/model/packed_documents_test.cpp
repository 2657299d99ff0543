// Samples packed from documents, compared with the same documents one by one, in fp64.
#include <gtest/gtest.h>

#include "tests/support/tiny_model.h"

namespace mcpp::packed_documents_test {
namespace {

using test::Numbers;
using test::TinyModel;

const std::vector<std::vector<i64>> kLengths{{3, 5, 2}, {6, 4}};

Numbers gradients(TinyModel& m) {
  Numbers all;
  m.model.visit([&](Param& param, int) {
    const Numbers x = test::to_doubles(param.main_grad);
    all.insert(all.end(), x.begin(), x.end());
  });
  return all;
}

/// Returns rows [begin, begin + length) of column b of [s, b].
Tensor rows_of(const Tensor& x, i64 b, i64 begin, i64 length) {
  std::vector<i32> rows;
  const std::vector<i32> all = read_values<i32>(x);
  for (i64 s = begin; s < begin + length; ++s) rows.push_back(all[static_cast<std::size_t>(s * x.dim(1) + b)]);
  return test::integers_of(rows, x.device()).view({length, 1});
}

test::NamedModel with_positions(const char* name, ModelConfig config, PositionEmbedding positions) {
  config.position_embedding_type = positions;
  return {name, config};
}

std::vector<test::NamedModel> models() {
  std::vector<test::NamedModel> all{with_positions("learned", test::tiny_gpt2(), PositionEmbedding::LearnedAbsolute),
                                    with_positions("rope", test::tiny_llama(), PositionEmbedding::Rope),
                                    with_positions("none", test::tiny_gpt2(), PositionEmbedding::None)};
  for (const test::NamedModel& variant : test::tiny_variants())
    if (BlockKinds(variant.config).kinds.front().recurrent() && variant.config.mtp_num_layers == 0)
      all.push_back(variant);
  return all;
}

class PackedDocumentsTest : public testing::TestWithParam<test::NamedModel> {
 protected:
  static ModelConfig config() { return GetParam().config; }
  static std::unique_ptr<TinyModel> packed(const ModelConfig& config, DType dtype, const Recompute& recompute = {}) {
    auto m = std::make_unique<TinyModel>(config, dtype, recompute);
    m->make_batch(static_cast<i64>(kLengths.size()));
    m->make_documents(kLengths);
    return m;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, PackedDocumentsTest, testing::ValuesIn(models()),
                         [](const auto& p) { return p.param.name; });

TEST_P(PackedDocumentsTest, MatchLossAndGradientsOfSingleDocuments) {
  const auto m = packed(config(), DType::F64);
  const double loss = m->step();
  double expected_loss = 0;
  Numbers expected(gradients(*m).size());
  for (std::size_t b = 0; b < kLengths.size(); ++b) {
    i64 begin = 0;
    for (const i64 length : kLengths[b]) {
      TinyModel one(config(), DType::F64);
      one.samples = {0};
      one.tokens = rows_of(m->tokens, static_cast<i64>(b), begin, length);
      one.targets = rows_of(m->targets, static_cast<i64>(b), begin, length);
      begin += length;
      expected_loss += one.step();
      const Numbers part = gradients(one);
      for (std::size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
    }
  }
  EXPECT_NEAR(loss, expected_loss, 1e-11 * expected_loss);
  const Numbers actual = gradients(*m);
  for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-11) << i;
}

TEST_P(PackedDocumentsTest, DoNotAttendToEarlierDocuments) {
  const auto m = packed(config(), DType::F64);
  const double loss = m->step();
  const Tensor starts = m->attention_starts;
  m->attention_starts = {};
  EXPECT_GT(std::abs(m->step() - loss), 1e-4) << "attention sees earlier documents";
  m->attention_starts = starts, m->position_starts = {};
  // Rotary positions are relative, so that their origin does not matter within a document.
  const bool matters = config().position_embedding_type == PositionEmbedding::LearnedAbsolute;
  EXPECT_EQ(std::abs(m->step() - loss) > 1e-4, matters);
}

TEST_P(PackedDocumentsTest, RecomputationIsBitwiseIdentical) {
  ModelConfig dropped = config();
  dropped.hidden_dropout = 0.2;
  dropped.attention_dropout = 0.1;
  const auto plain = packed(dropped, DType::F32);
  const double loss = plain->step();
  using Granularity = Recompute::Granularity;
  for (const Recompute& recompute :
       {Recompute{.granularity = Granularity::Full, .num_layers = 2},
        Recompute{.granularity = Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true}}) {
    const auto m = packed(dropped, DType::F32, recompute);
    EXPECT_EQ(m->step(), loss);
    EXPECT_EQ(gradients(*m), gradients(*plain));
  }
}

}  // namespace
}  // namespace mcpp::packed_documents_test
