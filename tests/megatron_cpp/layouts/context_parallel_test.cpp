// Samples sharded over context-parallel ranks train the same model as one rank, for every cp_comm_type, with every
// other kind of parallelism, with dropout and with packed documents.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::context_parallel_test {
namespace {

using test::all_weights;
using test::expect_near;
using test::Numbers;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

constexpr auto kP2p = CpCommType::P2p, kGather = CpCommType::AllGather, kA2a = CpCommType::A2a,
               kBoth = CpCommType::A2aP2p;

Recompute full() {
  return {.granularity = Recompute::Granularity::Full, .method = Recompute::Method::Uniform, .num_layers = 2};
}
Recompute selective() {
  return {.granularity = Recompute::Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true};
}

constexpr auto k1F1B = ScheduleKind::OneFOneB, kInterleaved = ScheduleKind::Interleaved, kZbH1 = ScheduleKind::ZbH1,
               kZbV = ScheduleKind::ZbV;

const RunLayout kLayouts[]{
    {"p2p_2", {.cp = 2}},
    {"p2p_4", {.cp = 4}},
    {"p2p_8", {.cp = 8}},
    {"gather_2", {.cp = 2, .cp_comm_type = kGather}},
    {"gather_4", {.cp = 4, .cp_comm_type = kGather}},
    {"gather_8", {.cp = 8, .cp_comm_type = kGather}},
    {"a2a_2", {.cp = 2, .cp_comm_type = kA2a}},
    {"a2a_4", {.cp = 4, .cp_comm_type = kA2a}},
    {"a2a_8", {.cp = 8, .cp_comm_type = kA2a}},
    {"a2a_p2p_2x2", {.cp = 4, .cp_comm_type = kBoth, .cp_hierarchy = {2, 2}}},
    {"a2a_p2p_2x4", {.cp = 8, .cp_comm_type = kBoth, .cp_hierarchy = {2, 4}}},
    {"a2a_p2p_4x2", {.cp = 8, .cp_comm_type = kBoth, .cp_hierarchy = {4, 2}}},
    {"tp2_p2p_2", {.tp = 2, .cp = 2}},
    {"tp2_sp_p2p_2", {.tp = 2, .cp = 2, .sequence_parallel = true}},
    {"tp2_sp_p2p_4", {.tp = 2, .cp = 4, .sequence_parallel = true}},
    {"tp2_sp_gather_2", {.tp = 2, .cp = 2, .sequence_parallel = true, .cp_comm_type = kGather}},
    {"tp4_a2a_2", {.tp = 4, .cp = 2, .cp_comm_type = kA2a}},
    {"tp2_sp_a2a_p2p_2x2",
     {.tp = 2, .cp = 4, .sequence_parallel = true, .cp_comm_type = kBoth, .cp_hierarchy = {2, 2}}},
    {"pp2_p2p_2", {.cp = 2, .pp = 2}},
    {"pp2_interleaved_gather_2", {.cp = 2, .pp = 2, .cp_comm_type = kGather, .schedule = kInterleaved, .chunks = 2}},
    {"pp2_zb_v_a2a_2", {.cp = 2, .pp = 2, .cp_comm_type = kA2a, .schedule = kZbV, .chunks = 2}},
    {"pp4_zb_h1_p2p_2", {.cp = 2, .pp = 4, .schedule = kZbH1}},
    {"dp2_p2p_2_zero1", {.cp = 2, .dp = 2, .zero_stage = 1}},
    {"dp2_gather_2_zero2", {.cp = 2, .dp = 2, .cp_comm_type = kGather, .zero_stage = 2}},
    {"dp2_a2a_2_zero3", {.cp = 2, .dp = 2, .cp_comm_type = kA2a, .zero_stage = 3}},
    {"p2p_4_zero3", {.cp = 4, .zero_stage = 3}},
    {"dp4_p2p_2_hsdp_zero3", {.cp = 2, .dp = 4, .zero_stage = 3, .instances = 2}},
    {"p2p_2_recompute_full", {.cp = 2, .recompute = full()}},
    {"p2p_4_recompute_selective", {.cp = 4, .recompute = selective()}},
    {"a2a_2_recompute_selective", {.cp = 2, .cp_comm_type = kA2a, .recompute = selective()}},
    {"tp2_sp_pp2_p2p_2_dp2_zero1",
     {.tp = 2, .cp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .schedule = k1F1B, .zero_stage = 1}},
};

/// GPT-2 with dropout, tied embeddings and learned positions; Llama with grouped queries, where some layouts have fewer
/// groups than ranks; Llama with windows that reach into the shards of other ranks; layers with recurrent mixers;
/// multi-latent attention.
ModelConfig model_of(const std::string& name) {
  ModelConfig config = name == "gpt2" ? test::tiny_gpt2() : test::tiny_llama();
  config.num_layers = 4;
  config.hidden_size = 32;
  config.num_attention_heads = 8;
  config.seq_length = 32;
  if (name == "gpt2") config.hidden_dropout = config.attention_dropout = 0.1;
  if (name == "latent") config = test::with_latent_attention(config);
  if (name == "windows") {  // in all layers except every third
    config.window_size = {9, 0};
    config.window_attn_skip_freq = {3};
  }
  if (name == "recurrent") {
    config.recurrent = test::tiny_mamba().recurrent;
    config.hybrid_layer_pattern = "M*G-";
  }
  return config;
}

constexpr i32 kEod = 3;

RunTask task_of(const std::string& model, bool has_documents, DType dtype = DType::F32) {
  RunTask task = test::learnable_task(model_of(model), dtype);
  task.steps = 10;
  task.global_batch_size = 4;
  if (has_documents) task.eod = kEod;
  return task;
}

/// Returns the result of a reference layout. Each is run only once.
const RunResult& reference(const std::string& model, bool has_documents, const RunLayout& layout,
                           DType dtype = DType::F32) {
  static std::map<std::string, RunResult> results;
  const std::string key = str(model, has_documents, name_of(dtype), layout.name);
  if (!results.contains(key)) results[key] = run_layout(task_of(model, has_documents, dtype), layout);
  return results.at(key);
}

class ContextParallelLayoutsTest : public testing::TestWithParam<std::tuple<const char*, bool, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, ContextParallelLayoutsTest,
                         testing::Combine(testing::Values("gpt2", "llama", "windows", "recurrent"), testing::Bool(),
                                          testing::ValuesIn(kLayouts)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), std::get<1>(p.param) ? "_documents_" : "_",
                                      std::get<2>(p.param).name);
                         });

INSTANTIATE_TEST_SUITE_P(LatentAttention, ContextParallelLayoutsTest,
                         testing::Combine(testing::Values("latent"), testing::Values(true),
                                          testing::ValuesIn(kLayouts)),
                         [](const auto& p) { return std::get<2>(p.param).name; });

TEST_P(ContextParallelLayoutsTest, MatchesOneRankAfterTenSteps) {
  const auto& [model, has_documents, layout] = GetParam();
  const RunResult& one_rank = reference(model, has_documents, {});
  test::expect_learned(one_rank, task_of(model, has_documents));
  expect_near(run_layout(task_of(model, has_documents), layout), one_rank, 1e-5, 1e-4, model_of(model));
}

/// A layout may differ from one rank by as much as the low-precision type differs from fp32 (layout_parity_test.cpp).
class LowPrecisionContextParallelTest : public testing::TestWithParam<std::tuple<const char*, DType, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, LowPrecisionContextParallelTest,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Values(DType::BF16, DType::F16),
                                          testing::Values(kLayouts[1], kLayouts[4], kLayouts[6], kLayouts[9])),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), "_", name_of(std::get<1>(p.param)), "_",
                                      std::get<2>(p.param).name);
                         });

TEST_P(LowPrecisionContextParallelTest, MatchesOneRankWithinRoundingError) {
  const auto& [model, dtype, layout] = GetParam();
  const ModelConfig config = model_of(model);
  const RunResult result = run_layout(task_of(model, true, dtype), layout);
  const RunResult &one_rank = reference(model, true, {}, dtype), &exact = reference(model, true, {});
  EXPECT_LE(relative_distance(result.losses, one_rank.losses), relative_distance(one_rank.losses, exact.losses));
  const Numbers weights = all_weights(one_rank, config);
  EXPECT_LE(relative_distance(all_weights(result, config), weights),
            relative_distance(weights, all_weights(exact, config)));
}

/// One long document, short ones and some of 3 tokens, in a different order in each sample.
const std::vector<i64> kMixedLengths{500, 20, 3, 3, 120, 60, 318, 700, 30};

/// Samples packed from documents of these lengths.
RunTask task_of_mixed_documents(const std::string& model) {
  RunTask task = task_of(model, true);
  task.model.seq_length = 1024;
  task.steps = 3, task.global_batch_size = 2;
  task.lr = [](i64) { return 3e-4; };
  task.tokens = [](i64 sample) {
    std::vector<i32> tokens = test::learnable_tokens(sample, 1025, 50);
    std::ranges::replace(tokens, kEod, kEod + 1);
    std::size_t document = static_cast<std::size_t>(sample) % kMixedLengths.size();
    for (std::size_t end = 0; end < tokens.size(); document = (document + 1) % kMixedLengths.size()) {
      end += static_cast<std::size_t>(kMixedLengths[document]);
      if (end <= tokens.size()) tokens[end - 1] = kEod;
    }
    return tokens;
  };
  return task;
}

/// Each microbatch is partitioned according to its own documents.
class MixedDocumentsTest : public testing::TestWithParam<std::tuple<const char*, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, MixedDocumentsTest,
    testing::Combine(testing::Values("gpt2", "llama", "windows"),
                     testing::Values(RunLayout{"p2p_2", {.cp = 2}}, RunLayout{"p2p_4", {.cp = 4}},
                                     RunLayout{"gather_4", {.cp = 4, .cp_comm_type = kGather}},
                                     RunLayout{"a2a_p2p_2x2", {.cp = 4, .cp_comm_type = kBoth, .cp_hierarchy = {2, 2}}},
                                     RunLayout{"tp2_sp_p2p_2", {.tp = 2, .cp = 2, .sequence_parallel = true}},
                                     RunLayout{"pp2_dp2_p2p_2_zero1", {.cp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
                                     RunLayout{"p2p_2_recompute_full", {.cp = 2, .recompute = full()}})),
    [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

TEST_P(MixedDocumentsTest, MatchesOneRankForAnyPartition) {
  const auto& [model, layout] = GetParam();
  const RunTask task = task_of_mixed_documents(model);
  static std::map<std::string, RunResult> one_rank;
  if (!one_rank.contains(model)) one_rank[model] = run_layout(task, {});
  expect_near(run_layout(task, layout), one_rank.at(model), 1e-5, 1e-4, task.model);
}

/// If heads are exchanged, no sum is split over ranks, and the loss differs from that of one rank only by the order in
/// which tokens are added. In fp64, whose GEMMs are simple loops; fp32 GEMMs may depend on the number of rows.
TEST(ContextParallelSumsTest, AreNotSplitWhenHeadsAreExchanged) {
  for (const char* model : {"gpt2", "llama"}) {
    RunTask task = task_of(model, true, DType::F64);
    task.steps = 1, task.global_batch_size = 1;
    const RunResult one_rank = run_layout(task, {});
    const RunResult result = run_layout(task, {{.cp = 2, .cp_comm_type = kA2a}});
    EXPECT_NEAR(result.losses[0], one_rank.losses[0], 1e-15 * one_rank.losses[0]);
  }
}

}  // namespace
}  // namespace mcpp::context_parallel_test
