// Predicted time of data-parallel traffic, against the bytes of docs/communication_compression.md.
#include "plan/step/weight_traffic.h"

#include <gtest/gtest.h>

#include "model/flops.h"
#include "plan/step/step_time.h"
#include "plan/step/weight_counts.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp {
namespace {

constexpr double kPacked = 17.0 / 16;
constexpr double kLayers = 16;

/// 32 ranks in nodes of 8, with links of the given GB/s within and between nodes, unlimited memory bandwidth, and no
/// overlap.
class WeightTrafficTest : public testing::Test {
 protected:
  WeightTrafficTest() : hardware_(test::toy_cluster(100, 100)), work_(test::toy_workload(16, 4096, 32, 64)) {
    hardware_.device.memory_attained = hardware_.device.fp32_attained = 1e9;
    program_.overlaps_data_parallel = false;
    layout_.dp = 32;
  }

  StepTime step() const { return step_time({hardware_, program_, work_, layout_}); }
  /// Returns the number of weights of all layers; one layer has 12 h^2.
  static double weights() { return kLayers * 12 * 4096 * 4096; }
  static double part(double n) { return (n - 1) / n; }
  /// Converts seconds to bytes per weight over links of 100 GB/s.
  static double bytes_of_weight(double seconds) { return seconds * 100e9 / weights(); }

  Hardware hardware_;
  Workload work_;
  KernelTraits program_;
  Layout layout_;
};

// Two microbatches. The embedding is also the output's weight, and is gathered once more for that.
TEST_F(WeightTrafficTest, Zero3MatchesTable) {
  layout_.zero_stage = 3;
  const auto sent = [&] {
    const StepTime t = step();
    return bytes_of_weight(t.work.data_parallel + t.data_parallel);
  };
  const double m = 2, embedding = 32000.0 * 4096 / weights(), once = 1 + embedding, gathers = m * (2 + 3 * embedding);
  EXPECT_NEAR(sent(), (gathers * 2 + m * once * 4) * part(32), 0.05);
  layout_.node_ranks = 8;
  EXPECT_NEAR(sent(), once * 2 * part(32) + (gathers - once) * 2 * part(8) + 4 * m * once * part(32), 0.05);
  layout_.formats.quantized_weights = true;
  const double packed = once * kPacked * part(32) + (gathers - once) * kPacked * part(8);
  EXPECT_NEAR(sent(), packed + 4 * m * once * part(32), 0.05);
  layout_.formats.set_grad_reduce_format(GradReduceFormat::Int8);
  EXPECT_NEAR(sent(), packed + m * once * kPacked * (part(8) + part(4) / 8), 0.05);
  layout_.formats.set_grad_reduce_format(GradReduceFormat::Bf16);
  EXPECT_NEAR(sent(), packed + m * once * 2 * (part(8) + part(4) / 8), 0.05);
  layout_.formats.set_grad_reduce_format(GradReduceFormat::Int8);
  layout_.node_ranks = 1;
  EXPECT_NEAR(sent(), (gathers + m * once) * kPacked * part(32), 0.05);
  layout_.formats = {.main_grads_dtype = GradDType::Bf16};
  EXPECT_NEAR(sent(), (gathers * 2 + 2 * m * once) * part(32), 0.05);
  layout_.formats = {};
  work_.model.untie_embeddings_and_output_weights = true;
  EXPECT_NEAR(sent(), m * (1 + 2 * embedding) * (2 * 2 + 4) * part(32), 0.05);
  layout_.zero_stage = 2;
  const double all = 1 + 2 * embedding;
  EXPECT_NEAR(sent(), (m * all * 4 + all * 2) * part(32), 0.05);
}

TEST_F(WeightTrafficTest, Zero1SendsOncePerStep) {
  layout_.zero_stage = 1;
  const double ratio_with_embedding = (weights() + 32000.0 * 4096) / weights();  // including the embedding
  const auto sent = [&] { return bytes_of_weight(step().data_parallel) / ratio_with_embedding; };
  EXPECT_NEAR(sent(), (2 + 4) * part(32), 0.05);
  layout_.formats.quantized_weights = true;
  EXPECT_NEAR(sent(), (kPacked + 4) * part(32), 0.05);
  layout_.formats.set_grad_reduce_format(GradReduceFormat::Bf16);
  EXPECT_NEAR(sent(), (kPacked + 2) * part(32), 0.05);
  layout_.formats.set_grad_reduce_format(GradReduceFormat::Int8);
  EXPECT_NEAR(sent(), 2 * kPacked * part(32), 0.05);
}

// Matrices of at least 4096 rows, with 4 elements per row and column.
TEST_F(WeightTrafficTest, LowRankFactorsAreSmall) {
  const auto sent = [&] { return bytes_of_weight(step().data_parallel); };
  const double full = sent();
  layout_.formats.power_sgd_rank = 4;
  const double table = 32000.0 * 4096,
               elements = kLayers * 4 * (4 + 2 + 5 + 5) * 4096 + table;  // the embedding is not compressed
  EXPECT_NEAR(sent(), 2 * part(32) * 4 * elements / weights(), 0.01);
  const double of_table = 2 * part(32) * 4 * table / weights();
  EXPECT_LT(sent() - of_table, (full - of_table) / 50);
}

// Packing is device work that a slow memory does not hide.
TEST_F(WeightTrafficTest, PackingTakesDeviceTime) {
  layout_.zero_stage = 3;
  layout_.formats.quantized_weights = true;
  program_.overlaps_data_parallel = true;
  hardware_.links.bandwidth = {1e9, 1e9};
  EXPECT_LT(step().work.data_parallel, 1e-2);
  hardware_.device.memory_attained = 1000;
  const double ways = 2 * 2 * (kPacked + 2) * (1 + 1.0 / 32);
  EXPECT_NEAR(step().work.data_parallel, ways * weights() / 1000e9, 1e-2);
}

TEST(WeightCountsTest, IncludesAttentionOutputGates) {
  const Workload plain = test::toy_workload(16, 4096, 32, 64);
  ModelConfig gated = plain.model;
  gated.attention_output_gate = {1};
  const Layout layout{.tp = 2};
  const Hardware hardware = test::toy_cluster(100, 10);
  const KernelTraits program;
  const auto counts = [&](const ModelConfig& model) {
    Workload work = plain;
    work.model = model;
    return WeightCounts({hardware, program, work, layout}).block_counts(0);
  };
  const i64 width = block_spec(gated, 0).attention()->query_width();
  EXPECT_EQ(counts(gated).dense.all - counts(plain.model).dense.all,
            static_cast<double>(width / 2 * gated.hidden_size));
  EXPECT_EQ(counts(gated).tensors - counts(plain.model).tensors, 1);
}

/// The layer of multi-token prediction has experts, unlike the last layer.
TEST(WeightCountsTest, IncludesBranchesOfMultiTokenPrediction) {
  Workload work = test::toy_workload(4, 512, 8, 64);
  ModelConfig& model = work.model;
  model.position_embedding_type = PositionEmbedding::Rope;
  model.moe.num_experts = 4;
  model.moe.layer_freq = {0, 1, 1, 0};
  model.mtp_num_layers = 1;
  const Layout layout;
  const Hardware hardware = test::toy_cluster(100, 10);
  const KernelTraits program;
  const auto counts = [&](const char* branches) {
    model.mtp_hybrid_layer_pattern = branches;
    return WeightCounts({hardware, program, work, layout}).mtp_counts();
  };
  const auto parameters = [&](const char* branches) {
    model.mtp_hybrid_layer_pattern = branches;
    return static_cast<double>(count_parameters(model).mtp);
  };
  EXPECT_EQ(counts("").experts.all, 0);
  EXPECT_GT(counts("*E").experts.all, 0);
  for (const char* branches : {"*E", "-", "*"}) {
    const WeightCounts::BlockCounts mtp = counts(branches), plain = counts("");
    EXPECT_EQ(mtp.dense.all + mtp.experts.all - plain.dense.all, parameters(branches) - parameters("")) << branches;
  }
}

TEST(WeightCountsTest, PredictionStageHasCopyOfEmbeddingButNoOutputMatrix) {
  Workload work = test::toy_workload(4, 512, 8, 64);
  work.model.position_embedding_type = PositionEmbedding::Rope;
  work.model.untie_embeddings_and_output_weights = true;
  work.model.mtp_num_layers = 2;
  const Layout layout;
  const Hardware hardware = test::toy_cluster(100, 10);
  const KernelTraits program;
  const WeightCounts weights({hardware, program, work, layout});
  const StageContents together{.first_layer = 3, .end_layer = 4, .has_embedding = false},
      prediction{.first_layer = 3, .end_layer = 4, .has_embedding = false, .has_output = false, .has_final_norm = true},
      output{.first_layer = 4, .end_layer = 4, .has_embedding = false, .has_final_norm = false};
  EXPECT_EQ(weights.stage_weights(output).all, weights.vocabulary());
  EXPECT_EQ(weights.stage_weights(prediction).all,
            weights.block_counts(0).dense.all + weights.mtp_counts().dense.all + weights.vocabulary());
  EXPECT_EQ(weights.stage_weights(together).all,
            weights.stage_weights(prediction).all + weights.stage_weights(output).all);
}

}  // namespace
}  // namespace mcpp
