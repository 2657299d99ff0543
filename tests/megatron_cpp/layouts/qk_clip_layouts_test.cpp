// Largest attention logits and QK-clip: logits shrink to the threshold, for every kind of attention, and every layout
// trains the same model.
#include <gtest/gtest.h>

#include "megatron_cpp/step/logit_stats.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/state_layouts.h"
#include "tests/support/tiny_model.h"

namespace mcpp::qk_clip_layouts_test {
namespace {

using test::LayoutRank;
using test::Numbers;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

constexpr double kThreshold = 0.02;  // below the logits of initial weights

RunTask task_of(ModelConfig model, DType dtype = DType::F32) {
  model.num_layers = 4;
  model.seq_length = 8;
  RunTask task = test::learnable_task(model, dtype);
  task.steps = 4;
  task.optimizer.qk_clip = true;
  task.optimizer.qk_clip_threshold = kThreshold;
  return task;
}

ModelConfig grouped_queries() {
  ModelConfig model = test::tiny_llama();
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  return model;
}

ModelConfig biased_heads() {
  ModelConfig model = test::tiny_llama();
  model.num_attention_heads = 4;
  model.num_query_groups = 0;
  model.add_qkv_bias = true;
  return model;
}

ModelConfig latent_attention() {
  ModelConfig model = test::tiny_llama();
  model.num_attention_heads = 4;
  model.num_query_groups = 0;
  model.mla.is_used = true;
  model.mla.q_lora_rank = 12, model.mla.kv_lora_rank = 10;
  model.mla.qk_head_dim = 8, model.mla.qk_pos_emb_head_dim = 4, model.mla.v_head_dim = 6;
  return model;
}

/// Steps with a learning rate of 0 on the same samples: QK-clip alone changes the weights. Returns the largest logit of
/// the first layer, whose input does not change.
Numbers logits_without_learning(RunTask task, const RunLayout& layout, i64 steps) {
  task.lr = [](i64) { return 0.0; };
  Numbers largest;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.state().record_attention_logits(true);
    Numbers of_rank;
    for (i64 step = 0; step < steps; ++step) {
      self.backward(0);
      self.update(step);
      of_rank.push_back(self.state().outcome().logits.at(0).largest);
    }
    if (rank == 0) largest = of_rank;
  });
  return largest;
}

TEST(QkClipTest, ShrinksLargestLogitToThreshold) {
  for (const ModelConfig& model : {biased_heads(), grouped_queries(), latent_attention()}) {
    for (const double alpha : {0.5, 0.0, 1.0}) {
      RunTask task = task_of(model);
      task.optimizer.qk_clip_alpha = alpha;
      const Numbers largest = logits_without_learning(task, {}, 3);
      EXPECT_GT(largest[0], 1.5 * kThreshold);
      EXPECT_NEAR(largest[1], kThreshold, 2e-6 * kThreshold) << alpha;
      EXPECT_NEAR(largest[2], kThreshold, 2e-6 * kThreshold) << alpha;
      task.optimizer.qk_clip = false;
      EXPECT_EQ(logits_without_learning(task, {}, 2), Numbers(2, largest[0]));
    }
  }
}

/// With a key per head, queries and keys of a head shrink by the same factor, and nothing else changes.
TEST(QkClipTest, ScalesRowsOfQueriesAndKeysOnly) {
  RunTask task = task_of(biased_heads());
  task.steps = 1;
  const RunResult clipped = test::run_layout(task, {});
  task.optimizer.qk_clip = false;
  const RunResult plain = test::run_layout(task, {});
  const i64 h = task.model.hidden_size, d = h / 4;
  double smallest = 1;
  for (const auto& [name, values] : plain.weights) {
    const Numbers& now = clipped.weights.at(name);
    if (name.find("linear_qkv") == name.npos) {
      EXPECT_EQ(now, values) << name;
      continue;
    }
    const i64 row = name.ends_with(".bias") ? 1 : h;
    for (i64 head = 0; head < 4; ++head) {
      const auto ratio_of = [&](i64 part) {  // of the rows of query, key and value
        double sum = 0, was = 0;
        for (i64 i = 0; i < d * row; ++i) {
          const auto at = static_cast<std::size_t>((head * 3 + part) * d * row + i);
          sum += now[at] * values[at], was += values[at] * values[at];
        }
        return was > 0 ? sum / was : 1;
      };
      EXPECT_NEAR(ratio_of(0), ratio_of(1), 1e-6) << name << " head " << head;
      EXPECT_EQ(ratio_of(2), 1) << name << " head " << head;
      if (row > 1 && name.starts_with("decoder.layers.0.")) smallest = std::min(smallest, ratio_of(0));
    }
  }
  ASSERT_EQ(clipped.logits.size(), 8u);  // largest logit and clipped heads of four layers
  EXPECT_NEAR(smallest * smallest, kThreshold / clipped.logits[0], 1e-5);
  EXPECT_EQ(clipped.logits[1], 4);
}

TEST(QkClipTest, SharesOfHeadsMultiplyToTheirRatios) {
  const std::vector<double> ratios{0.5, 0.8, 1.0, 0.25, 0.36, 0.16};
  using enum QkRows::Kind;
  const auto factor = [&](QkRows::Kind kind, i64 head, i64 group, i64 heads, double alpha) {
    return qk_factor({.kind = kind, .first = 0, .count = 0, .head = head, .group = group, .heads = heads}, ratios,
                     alpha);
  };
  EXPECT_NEAR(factor(Query, 3, 3, 1, 0.5), 0.5, 1e-15);
  EXPECT_NEAR(factor(Key, 3, 3, 1, 0.5), 0.5, 1e-15);
  EXPECT_NEAR(factor(Query, 5, 5, 1, 0.75), std::pow(0.16, 0.75), 1e-15);
  EXPECT_EQ(factor(RotaryQuery, 3, 3, 1, 0.5), 0.25);
  EXPECT_EQ(factor(Key, 0, 0, 3, 0.5), 1) << "a head of the group is below the threshold";
  EXPECT_EQ(factor(Query, 1, 0, 3, 0.5), 0.8);
  EXPECT_NEAR(factor(Key, 4, 4, 2, 0.5), 0.6, 1e-15);
  EXPECT_NEAR(factor(Key, 4, 4, 2, 0.5) * factor(Query, 5, 4, 2, 0.5), 0.16, 1e-15);
}

TEST(QkClipLayoutsTest, IsBitwiseIdenticalWhereWeightsAre) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const ModelConfig& model : {grouped_queries(), latent_attention()}) {
      const RunTask task = task_of(model, dtype);
      const RunResult one = test::run_layout(task, {}), dp2 = test::run_layout(task, {{.dp = 2}});
      EXPECT_GT(one.logits.at(1), 0) << "no head was clipped";
      for (const RunLayout& layout : {RunLayout{"pp4", {.pp = 4}},
                                      {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
                                      {"recompute", {.recompute = {.granularity = Recompute::Granularity::Full}}}}) {
        SCOPED_TRACE(layout.name);
        const RunResult result = test::run_layout(task, layout);
        test::expect_same_bits(result, one);
        EXPECT_EQ(result.logits, one.logits);
      }
      const RunResult zero1 = test::run_layout(task, {{.dp = 2, .zero_stage = 1}});
      test::expect_same_bits(zero1, dp2);
      EXPECT_EQ(zero1.logits, dp2.logits);
    }
  }
}

TEST(QkClipLayoutsTest, TrainsSameModelOnEveryLayout) {
  const std::vector<RunLayout> layouts{
      {"tp2", {.tp = 2}},
      {"tp4_shared_groups", {.tp = 4, .sequence_parallel = true}},
      {"cp2_ring", {.cp = 2}},
      {"cp2_gathered", {.cp = 2, .cp_comm_type = CpCommType::AllGather}},
      {"cp2_exchanged", {.cp = 2, .cp_comm_type = CpCommType::A2a}},
      {"cp4_hierarchical", {.cp = 4, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {2, 2}, .zero_stage = 3}},
      {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
      {"tp2_pp2_dp2_zero3", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 3}}};
  for (const ModelConfig& model : {grouped_queries(), latent_attention()}) {
    const RunTask task = task_of(model);
    const RunResult one = test::run_layout(task, {});
    for (const RunLayout& layout : layouts) {
      SCOPED_TRACE(layout.name);
      const RunResult result = test::run_layout(task, layout);
      test::expect_near(result, one, 1e-5, 1e-4, task.model);
      EXPECT_LE(test::relative_distance(result.logits, one.logits), 1e-4);
    }
  }
}

TEST(QkClipLayoutsTest, IsBitwiseIdenticalWithOffloadAndEntersAverage) {
  const test::DiskFolder folder;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : test::named(test::kStateLayouts, {"one_rank", "dp2_zero1", "dp4_hsdp_zero3"})) {
      RunTask task = task_of(grouped_queries(), dtype), offloaded = task;
      task.optimizer.ema_decay = 1e-9;  // the average is nearly the weights after the step
      offloaded.optimizer = task.optimizer;
      offloaded.optimizer.offload = OffloadTier::File;
      offloaded.optimizer.offload_folder = folder.path().string();
      offloaded.optimizer.offload_segment_size = 1000;
      offloaded.optimizer.store_param_remainders = dtype == DType::BF16;
      if (layout.zero_stage == 3) offloaded.optimizer.offload_params = OffloadTier::Host;
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const RunResult resident = test::run_layout(task, layout);
      test::expect_same_bits(test::run_layout(offloaded, layout), resident);
      for (const auto& [name, values] : resident.averages)
        EXPECT_LE(test::relative_distance(values, resident.weights.at(name)), dtype == DType::F32 ? 1e-6 : 1e-2)
            << name;
    }
  }
}

}  // namespace
}  // namespace mcpp::qk_clip_layouts_test
