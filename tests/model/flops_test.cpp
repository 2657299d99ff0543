#include "model/flops.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/config/block_spec.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

ModelConfig gpt2(i64 layers, i64 hidden, i64 heads) {
  ModelConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.vocab_size = 50257;
  c.make_vocab_size_divisible_by = 1;
  return c;
}

ModelConfig llama(i64 layers, i64 hidden, i64 heads, i64 groups, i64 ffn) {
  ModelConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.num_query_groups = groups;
  c.ffn_hidden_size = ffn;
  c.seq_length = 8192;
  c.vocab_size = 128256;
  c.position_embedding_type = PositionEmbedding::Rope;
  c.normalization = Normalization::RMSNorm;
  c.activation_func = ActivationFunction::SwiGLU;
  c.add_bias_linear = false;
  c.untie_embeddings_and_output_weights = true;
  return c;
}

TEST(CountParametersTest, MatchesPublishedSizesOfGpt2) {
  EXPECT_EQ(count_parameters(gpt2(12, 768, 12)).total(), 124439808);
  EXPECT_EQ(count_parameters(gpt2(24, 1024, 16)).total(), 354823168);
  EXPECT_EQ(count_parameters(gpt2(36, 1280, 20)).total(), 774030080);
  EXPECT_EQ(count_parameters(gpt2(48, 1600, 25)).total(), 1557611200);
}

TEST(CountParametersTest, MatchesPublishedSizesOfLlama3) {
  EXPECT_EQ(count_parameters(llama(32, 4096, 32, 8, 14336)).total(), 8030261248);
  EXPECT_EQ(count_parameters(llama(80, 8192, 64, 8, 28672)).total(), 70553706496);
}

TEST(CountParametersTest, MatchesHandComputedPartsOfGpt2) {
  const ParameterCounts n = count_parameters(gpt2(12, 768, 12));
  EXPECT_EQ(n.word_embeddings, 50257 * 768);
  EXPECT_EQ(n.position_embeddings, 1024 * 768);
  EXPECT_EQ(n.attention, 12 * (768 * 2304 + 2304 + 768 * 768 + 768));
  EXPECT_EQ(n.mlp, 12 * (2 * 768 * 3072 + 3072 + 768));
  EXPECT_EQ(n.norms, 25 * 2 * 768);
  EXPECT_EQ(n.output, 0);
}

TEST(CountParametersTest, IncludesPaddingBiasesAndUntiedOutput) {
  ModelConfig c = gpt2(12, 768, 12);
  c.make_vocab_size_divisible_by = 128;
  EXPECT_EQ(count_parameters(c).word_embeddings, 50304 * 768);
  c.add_bias_linear = false;
  c.add_qkv_bias = true;
  EXPECT_EQ(count_parameters(c).attention, 12 * (768 * 2304 + 2304 + 768 * 768));
  c.activation_func = ActivationFunction::SwiGLU;
  c.add_bias_linear = true;
  EXPECT_EQ(count_parameters(c).mlp, 12 * (3 * 768 * 3072 + 2 * 3072 + 768));
  c.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(count_parameters(c).output, 50304 * 768);
}

TEST(FlopsTest, CountsAttentionOutputGates) {
  ModelConfig c = gpt2(12, 768, 12), gated = c;
  gated.attention_output_gate = {4};
  EXPECT_EQ(count_parameters(gated).attention - count_parameters(c).attention, 3 * 768 * 768);
  EXPECT_DOUBLE_EQ(flops_per_token(gated) - flops_per_token(c), 6 * 3 * 768.0 * 768);
}

TEST(FlopsTest, MatchesHandComputedGpt2) {
  // Per layer and token: QKV 3h^2, projection h^2, MLP 8h^2, causal attention h*s; output h*V; all times 6.
  const double h = 768, s = 1024;
  EXPECT_DOUBLE_EQ(flops_per_token(gpt2(12, 768, 12)), 6 * (12 * (12 * h * h + h * s) + h * 50257));
}

TEST(FlopsTest, MatchesPublishedLlama3) {
  // Published: 14451 tokens/s at 744 TFLOP/s, which is 5.147e10 per token.
  EXPECT_NEAR(flops_per_token(llama(32, 4096, 32, 8, 14336)), 5.147e10, 0.001e10);
  const ModelConfig c = llama(32, 4096, 32, 8, 14336);
  EXPECT_DOUBLE_EQ(flops_per_batch(c, 3), flops_per_token(c) * 8192 * 3);
}

/// The layer of multi-token prediction has attention, unlike the last layer.
TEST(FlopsTest, CountsBranchesOfMultiTokenPrediction) {
  ModelConfig c = test::tiny_delta_net();
  c.num_layers = 4;  // layers 0, 1 and 3 have Gated DeltaNet
  const double before = attention_flops_per_token(c), dense = flops_per_token(c);
  c.mtp_num_layers = 1, c.mtp_hybrid_layer_pattern = "*-";
  const AttentionSpec attention = *block_spec(c, 4).attention();
  const double core = 4 * static_cast<double>(attention.query_width()) * attended_keys(0, c.seq_length);
  EXPECT_DOUBLE_EQ(attention_flops_per_token(c) - before, core);
  const i64 h = c.hidden_size, matrices = h * (2 * h + attention.query_width() + 2 * attention.key_width()) +
                                          attention.query_width() * h + 3 * h * c.ffn_hidden_size.first() +
                                          h * c.padded_vocab_size();
  EXPECT_DOUBLE_EQ(flops_per_token(c) - dense, 6 * static_cast<double>(matrices) + 3 * core);
}

TEST(FlopsTest, WindowCountsVisibleKeysOnly) {
  ModelConfig c = llama(32, 4096, 32, 8, 14336);
  const double full = flops_per_token(c), q = 4096, s = 8192;
  EXPECT_EQ(attended_keys(block_spec(c, 0).attention()->window, c.seq_length), s / 2);
  c.window_size = {1023, 0};
  double seen = 0;  // within one key: a sum over integer positions against an integral
  for (double query = 0; query < s; ++query) seen += std::min(query + 0.5, 1024.0) / s;
  EXPECT_NEAR(attended_keys(block_spec(c, 0).attention()->window, c.seq_length), seen, 0.1);
  EXPECT_NEAR(full - flops_per_token(c),
              32 * 6 * 2 * q * (s / 2 - attended_keys(block_spec(c, 0).attention()->window, c.seq_length)),
              1e-6 * full);
  c.window_attn_skip_freq = {4};
  EXPECT_EQ(attended_keys(block_spec(c, 3).attention()->window, c.seq_length), s / 2);
  EXPECT_NEAR(full - flops_per_token(c),
              24 * 6 * 2 * q * (s / 2 - attended_keys(block_spec(c, 0).attention()->window, c.seq_length)),
              1e-6 * full);
  c.window_size = {8192, 0};
  EXPECT_EQ(flops_per_token(c), full);
}

TEST(FlopsTest, ChunksCountVisibleKeysOnly) {
  ModelConfig c = llama(32, 4096, 32, 8, 14336);
  const double full = flops_per_token(c), q = 4096, s = 8192;
  c.no_rope_freq = {4};
  for (const i64 chunk : {1024, 3000, 8192, 10000}) {
    c.attention_chunk_size = chunk;
    double seen = 0;
    for (i64 query = 0; query < c.seq_length; ++query) seen += (static_cast<double>(query % chunk) + 0.5) / s;
    EXPECT_NEAR(full - flops_per_token(c), 24 * 6 * 2 * q * (s / 2 - seen), 1e-9 * full) << chunk;
  }
}

}  // namespace
}  // namespace mcpp
