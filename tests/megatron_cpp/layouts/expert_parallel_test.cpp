// Experts sharded over ranks train the same model as one rank, for every router and balancing method, with and without
// dropped tokens, and with every other kind of parallelism.
#include <gtest/gtest.h>

#include "tests/support/build.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::expert_parallel_test {
namespace {

using test::expect_near;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

Recompute full() {
  return {.granularity = Recompute::Granularity::Full, .method = Recompute::Method::Uniform, .num_layers = 2};
}
Recompute selective() {
  return {.granularity = Recompute::Granularity::Selective,
          .core_attn = true,
          .layernorm = true,
          .mlp_act = true,
          .moe_act = true};
}

constexpr auto kGather = TokenDispatcherType::AllGather;
constexpr auto kHierarchical = TokenDispatcherType::Hierarchical;
constexpr auto kInterleaved = ScheduleKind::Interleaved, kZbH1 = ScheduleKind::ZbH1, kZbV = ScheduleKind::ZbV;

const RunLayout kLayouts[]{
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep4", {.dp = 4, .ep = 4}},
    {"ep2_dp4", {.dp = 4, .ep = 2}},
    {"tp2", {.tp = 2}},
    {"tp2_etp1", {.tp = 2, .etp = 1}},
    {"tp2_ep2_etp1", {.tp = 2, .ep = 2, .etp = 1}},
    {"tp2_sp_ep2_etp1", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
    {"tp2_sp_ep2_dp2", {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 2}},
    {"tp2_ep4_etp1_dp2", {.tp = 2, .dp = 2, .ep = 4, .etp = 1}},
    {"dp2_etp2", {.dp = 2, .etp = 2}},
    {"dp4_ep2_etp2", {.dp = 4, .ep = 2, .etp = 2}},
    {"tp4_sp_ep2_etp2", {.tp = 4, .sequence_parallel = true, .ep = 2, .etp = 2}},
    {"cp2_ep2", {.cp = 2, .ep = 2}},
    {"cp2_ep4_dp2", {.cp = 2, .dp = 2, .ep = 4}},
    {"tp2_sp_cp2_ep4_etp1", {.tp = 2, .cp = 2, .sequence_parallel = true, .ep = 4, .etp = 1}},
    {"pp2_ep2", {.pp = 2, .dp = 2, .ep = 2}},
    {"pp2_interleaved_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = kInterleaved, .chunks = 2}},
    {"pp2_zb_v_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = kZbV, .chunks = 2}},
    {"pp2_dualpipe_v_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::DualPipeV, .chunks = 2}},
    {"pp4_zb_h1_ep2", {.pp = 4, .dp = 2, .ep = 2, .schedule = kZbH1}},
    {"ep2_dp4_zero1", {.dp = 4, .ep = 2, .zero_stage = 1}},
    {"ep2_dp4_zero2", {.dp = 4, .ep = 2, .zero_stage = 2}},
    {"ep2_dp4_zero3", {.dp = 4, .ep = 2, .zero_stage = 3}},
    {"ep4_dp8_hsdp_zero3", {.dp = 8, .ep = 4, .zero_stage = 3, .instances = 2}},
    {"gather_ep4", {.dp = 4, .ep = 4, .dispatcher = kGather}},
    {"gather_tp2_ep2", {.tp = 2, .dp = 2, .ep = 2, .dispatcher = kGather}},
    {"gather_tp2_sp_cp2_pp2_ep2",
     {.tp = 2, .cp = 2, .pp = 2, .sequence_parallel = true, .ep = 2, .dispatcher = kGather}},
    {"hierarchical_ep4", {.dp = 4, .ep = 4, .dispatcher = kHierarchical}},
    {"hierarchical_ep4_in_2_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 2}},
    {"hierarchical_ep4_in_4_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 1}},
    {"hierarchical_ep4_in_uneven_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 3}},
    {"hierarchical_dp4_ep2_etp2", {.dp = 4, .ep = 2, .etp = 2, .dispatcher = kHierarchical, .dispatch_node_ranks = 2}},
    {"hierarchical_etp2_across_nodes",
     {.tp = 2, .dp = 2, .ep = 2, .etp = 2, .dispatcher = kHierarchical, .dispatch_node_ranks = 1}},
    {"hierarchical_tp2_sp_cp2_pp2_ep4_etp1",
     {.tp = 2,
      .cp = 2,
      .pp = 2,
      .sequence_parallel = true,
      .ep = 4,
      .etp = 1,
      .dispatcher = kHierarchical,
      .dispatch_node_ranks = 2}},
    {"hierarchical_dp8_ep4_hsdp_zero3",
     {.dp = 8, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 2, .zero_stage = 3, .instances = 2}},
    {"hierarchical_pp2_zb_v_recompute_selective",
     {.pp = 2,
      .dp = 4,
      .ep = 4,
      .dispatcher = kHierarchical,
      .dispatch_node_ranks = 2,
      .schedule = kZbV,
      .chunks = 2,
      .recompute = selective()}},
    {"ep2_recompute_full", {.dp = 2, .ep = 2, .recompute = full()}},
    {"ep2_recompute_selective", {.dp = 2, .ep = 2, .recompute = selective()}},
    {"tp2_sp_ep2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .ep = 2, .zero_stage = 1}},
};

/// Mixtral: softmax over the two chosen experts of four, with a balancing loss. DeepSeek-V3: sigmoid scores with a
/// balancing bias, groups, a scale, a shared expert and a dense first layer. Switch: one expert with a capacity, so
/// that tokens are dropped, with dropout, tied embeddings and biases. GLaM: experts in every other layer, the last
/// tokens dropped, balancing over each sample. Nemotron 3: experts of a latent with squared ReLU and a shared expert,
/// routed by sqrt-softplus scores in fp64 with a balancing bias and three balancing losses.
ModelConfig base_model(const std::string& name) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 4;
  config.hidden_size = 32;
  config.num_attention_heads = 8;
  config.num_query_groups = 4;
  config.seq_length = 32;
  MoeConfig& moe = config.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 24;
  if (name == "mixtral") {
    moe.aux_loss_coeff = 0.02;
  } else if (name == "deepseek") {
    moe.num_experts = 8;
    moe.layer_freq = {0, 1, 1, 1};
    moe.router_topk = 3;
    moe.router_score_function = RouterScore::Sigmoid;
    moe.router_enable_expert_bias = true;
    moe.router_bias_update_rate = 0.01;
    moe.router_num_groups = 4;
    moe.router_group_topk = 2;
    moe.router_topk_scaling_factor = 1.5;
    moe.router_load_balancing_type = LoadBalancing::GlobalAuxLoss;
    moe.aux_loss_coeff = 0.01;
    moe.shared_expert_intermediate_size = 16;
    moe.shared_expert_gate = true;
    config.add_mlp_bias = true;
  } else if (name == "nemotron") {
    config.activation_func = ActivationFunction::SquaredReLU;
    config.add_mlp_bias = true;
    moe.latent_size = 20;
    moe.router_dtype = RouterDType::Fp64;
    moe.router_score_function = RouterScore::SqrtSoftplus;
    moe.router_enable_expert_bias = true;
    moe.router_load_balancing_type =
        OneOrList(std::vector{LoadBalancing::SeqAuxLoss, LoadBalancing::AuxLoss, LoadBalancing::GlobalAuxLoss});
    moe.aux_loss_coeff = OneOrList(std::vector{0.02, 0.01, 0.03});
    moe.shared_expert_intermediate_size = 16;
  } else if (name == "switch") {
    config.activation_func = ActivationFunction::Gelu;
    config.add_bias_linear = true;
    config.untie_embeddings_and_output_weights = false;
    config.hidden_dropout = 0.1;
    moe.router_topk = 1;
    moe.router_pre_softmax = true;
    moe.aux_loss_coeff = 0.01;
    moe.z_loss_coeff = 1e-3;
    moe.expert_capacity_factor = 1;
  } else {
    moe.num_experts = 8;
    moe.layer_freq = {2};
    moe.expert_capacity_factor = 0.75;
    moe.token_drop_policy = TokenDropPolicy::Position;
    moe.router_load_balancing_type = LoadBalancing::SeqAuxLoss;
    moe.aux_loss_coeff = 0.05;
  }
  return config;
}

/// Returns a base model, or Mixtral or Switch padded to a capacity: one that exceeds an even share, with biases, or one
/// that drops the last tokens.
ModelConfig model_of(const std::string& name) {
  constexpr std::string_view kPadded = "padded_";
  if (!name.starts_with(kPadded)) return base_model(name);
  const std::string base = name.substr(kPadded.size());
  ModelConfig config = base_model(base);
  config.moe.pad_expert_input_to_capacity = true;
  config.moe.expert_capacity_factor = base == "switch" ? 0.75 : 1.5;
  if (base == "switch")
    config.moe.token_drop_policy = TokenDropPolicy::Position;
  else
    config.add_mlp_bias = true;
  return config;
}

RunTask task_of(const std::string& model, DType dtype = DType::F32) {
  RunTask task = test::learnable_task(model_of(model), dtype);
  task.steps = 8;
  task.global_batch_size = 8;
  return task;
}

/// Returns the task of a model for comparisons of different layouts. The padded models use fp64, because some tokens at
/// the limit of a capacity have almost equal weights, so that fp32 rounding determines which of them is dropped.
RunTask compared_task(const std::string& model) {
  return task_of(model, model.starts_with("padded") ? DType::F64 : DType::F32);
}

const RunResult& one_rank(const std::string& model) {
  static std::map<std::string, RunResult> results;
  if (!results.contains(model)) results[model] = run_layout(compared_task(model), {});
  return results.at(model);
}

class ExpertParallelLayoutsTest : public testing::TestWithParam<std::tuple<const char*, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, ExpertParallelLayoutsTest,
                         testing::Combine(testing::Values("mixtral", "deepseek", "switch", "glam", "nemotron",
                                                          "padded_mixtral", "padded_switch"),
                                          testing::ValuesIn(kLayouts)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

TEST_P(ExpertParallelLayoutsTest, MatchesOneRankAfterEightSteps) {
  const auto& [model, layout] = GetParam();
  const RunResult& expected = one_rank(model);
  const RunTask task = compared_task(model);
  test::expect_learned(expected, task);
  const double tolerance = task.dtype == DType::F64 ? 1e-12 : 1e-5;
  expect_near(run_layout(task, layout), expected, tolerance, 10 * tolerance, task.model);
}

const RunLayout kOverlappedLayouts[]{
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep4_dp4_zero1", {.dp = 4, .ep = 4, .zero_stage = 1}},
    {"ep2_dp4_zero2", {.dp = 4, .ep = 2, .zero_stage = 2}},
    {"tp2_sp_ep2_etp2_dp2", {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 2, .etp = 2}},
    {"tp2_ep2_etp1", {.tp = 2, .ep = 2, .etp = 1}},
    {"cp2_ep4_dp2", {.cp = 2, .dp = 2, .ep = 4}},
    {"pp2_ep2", {.pp = 2, .dp = 2, .ep = 2}},
    {"pp2_interleaved_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = kInterleaved, .chunks = 2}},
    {"pp2_zb_v_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = kZbV, .chunks = 2}},
    {"pp2_dualpipe_v_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::DualPipeV, .chunks = 2}},
    {"tp2_sp_ep2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .ep = 2, .zero_stage = 1}},
    {"gather_ep4", {.dp = 4, .ep = 4, .dispatcher = kGather}},
    {"gather_tp2_pp2_ep2", {.tp = 2, .pp = 2, .dp = 1, .ep = 2, .etp = 1, .dispatcher = kGather}},
    {"hierarchical_ep4_in_2_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 2}},
    {"hierarchical_ep4_in_1_node", {.dp = 4, .ep = 4, .dispatcher = kHierarchical}},
    {"hierarchical_pp2_ep4_in_uneven_nodes",
     {.pp = 2, .dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 3}},
    {"ep2_recompute_full", {.dp = 2, .ep = 2, .recompute = full()}},
    {"ep2_recompute_selective", {.dp = 2, .ep = 2, .recompute = selective()}},
    {"ep2_serial_sums", {.dp = 2, .ep = 2, .overlap_grad_reduce = false, .overlap_param_gather = false}},
};

class OverlappedExpertsLayoutsTest : public testing::TestWithParam<std::tuple<const char*, RunLayout>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, OverlappedExpertsLayoutsTest,
                         testing::Combine(testing::Values("mixtral", "deepseek", "switch", "glam", "nemotron",
                                                          "padded_mixtral"),
                                          testing::ValuesIn(kOverlappedLayouts)),
                         [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

/// The order of sums does not change.
TEST_P(OverlappedExpertsLayoutsTest, MatchesRunWithoutOverlapBitwise) {
  if (test::built_with_cuda()) GTEST_SKIP() << "supports CPUs only";
  const auto& [model, layout] = GetParam();
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(model, dtype);
    task.steps = 3;
    task.global_batch_size = 8 * layout.dp;  // enough microbatches for pairs
    const RunResult expected = run_layout(task, layout);
    RunLayout overlapped = layout;
    overlapped.overlap_moe_expert_parallel_comm = true;
    task.compares_executions = dtype == DType::F32;
    const RunResult found = run_layout(task, overlapped);
    test::expect_same_bits(found, expected);
    EXPECT_EQ(found.choices, expected.choices);
  }
}

/// Padding changes neither which tokens are dropped nor the losses of the first step.
TEST(PaddedExpertsLayoutsTest, LossesEqualThoseWithoutPaddingBitwise) {
  for (const char* model : {"padded_mixtral", "padded_switch"}) {
    for (const RunLayout& layout :
         {RunLayout{"one_rank", {}}, RunLayout{"ep2", {.dp = 2, .ep = 2}}, RunLayout{"dp2_etp2", {.dp = 2, .etp = 2}},
          RunLayout{"tp2_sp_ep2", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
          RunLayout{"cp2_ep2", {.cp = 2, .ep = 2}}, RunLayout{"gather_ep4", {.dp = 4, .ep = 4, .dispatcher = kGather}},
          RunLayout{"hierarchical_ep4", {.dp = 4, .ep = 4, .dispatcher = kHierarchical}}}) {
      SCOPED_TRACE(str(model, " ", layout.name));
      RunTask task = task_of(model);
      task.steps = 1;
      const RunResult padded = run_layout(task, layout);
      task.model.moe.pad_expert_input_to_capacity = false;
      const RunResult unpadded = run_layout(task, layout);
      EXPECT_EQ(padded.losses, unpadded.losses);
      expect_near(padded, unpadded, 1e-6, 1e-5, task.model);
    }
  }
}

/// The losses that balance samples, or all tokens of the previous step, do not depend on the size of microbatches or
/// their number on a rank; nor do losses per microbatch if all samples are equal. Masked targets and several documents
/// in a sample do not change this.
TEST(LoadBalancingLossTest, IsIndependentOfMicrobatchSize) {
  for (const LoadBalancing type : {LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss}) {
    RunTask task = task_of("mixtral", DType::F64);
    task.steps = 3;
    task.eod = 3;
    task.model.moe.router_load_balancing_type = type;
    task.model.moe.aux_loss_coeff = 0.5;
    task.model.moe.z_loss_coeff = 0.1;
    if (type == LoadBalancing::AuxLoss)
      task.tokens = [all = task.tokens](i64 sample) { return all(sample / 8); };  // one distinct sample per step
    task.lr = [](i64) { return 3e-4; };
    const RunResult expected = run_layout(task, {});
    for (const i64 samples : {1, 2, 4}) {
      task.micro_batch_size = samples;
      for (const RunLayout& layout :
           {RunLayout{}, RunLayout{{.dp = 2, .ep = 2}}, RunLayout{{.tp = 2, .ep = 2, .etp = 1}},
            RunLayout{{.cp = 2, .pp = 2, .zero_stage = 2}}}) {
        SCOPED_TRACE(str(samples, " samples on ", layout.ranks(), " ranks"));
        const RunResult found = run_layout(task, layout);
        expect_near(found, expected, 1e-11, 1e-9, task.model);
        EXPECT_LE(test::relative_distance(found.grad_norms, expected.grad_norms), 1e-10);
      }
    }
  }
}

/// A router of zeros gives all experts equal scores, and ties choose the first expert, so all tokens go to one rank.
TEST(ExpertParallelWorstCaseTest, MatchesOneRankWhenAllTokensChooseSameRank) {
  RunTask task = task_of("mixtral");
  task.steps = 2;
  test::Weights initial =
      run_layout(RunTask{.model = task.model, .optimizer = task.optimizer, .steps = 0, .tokens = task.tokens}, {})
          .weights;
  for (auto& [name, values] : initial)
    if (name.ends_with("router.weight")) std::fill(values.begin(), values.end(), 0);
  task.initial = &initial;
  const RunResult expected = run_layout(task, {});
  for (const TokenDispatcherType dispatcher : {TokenDispatcherType::AllToAll, kGather, kHierarchical}) {
    const i64 node_ranks = dispatcher == kHierarchical ? 2 : 0;
    expect_near(run_layout(task, {{.dp = 4, .ep = 4, .dispatcher = dispatcher, .dispatch_node_ranks = node_ranks}}),
                expected, 1e-5, 1e-4, task.model);
    expect_near(run_layout(task, {{.tp = 2, .pp = 2, .dp = 2, .ep = 4, .etp = 1, .dispatcher = dispatcher}}), expected,
                1e-5, 1e-4, task.model);
  }
}

}  // namespace
}  // namespace mcpp::expert_parallel_test
