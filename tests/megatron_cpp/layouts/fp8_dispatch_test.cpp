// Tokens and gradients that are sent to experts in fp8 (training.moe_fp8_dispatch): forward and the gradients of inputs
// are those of the recipe, weight gradients of experts are computed from rounded rows, and nothing depends on the
// number of ranks that exchange tokens.
#include <gtest/gtest.h>

#include <atomic>

#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/build.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/layouts/memory_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::fp8_dispatch_test {
namespace {

using test::expect_same_bits;
using test::LayoutRank;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

/// A token of 4 blocks of 32 takes 128 bytes of codes and 4 of scales.
constexpr i64 kHidden = 128, kTokenBytes = 2 * kHidden, kCodedBytes = kHidden + 4;
constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2};
constexpr Recompute kSelective{.granularity = Recompute::Granularity::Selective,
                               .core_attn = true,
                               .layernorm = true,
                               .mlp_act = true,
                               .moe_act = true};

/// DeepSeek-V3: two experts per token, a shared expert, and multi-token prediction. Switch: one expert with a capacity,
/// whose weighted input is padded. Nemotron 3: experts of a latent whose last block is smaller.
ModelConfig model_of(const std::string& name) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 2;
  config.hidden_size = kHidden;
  config.seq_length = 32;
  config.init_method_std = 0.05;
  MoeConfig& moe = config.moe;
  moe.num_experts = 4;
  moe.ffn_hidden_size = 64;
  moe.router_topk = 2;
  if (name == "deepseek") {
    moe.shared_expert_intermediate_size = 32;
    moe.aux_loss_coeff = 0.01;
    config.mtp_num_layers = 1;
  } else if (name == "switch") {
    config.activation_func = ActivationFunction::Gelu;
    config.add_mlp_bias = true;
    moe.router_topk = 1;
    moe.router_score_function = RouterScore::Sigmoid;
    moe.apply_probs_on_input = true;
    moe.expert_capacity_factor = 1.25;
    moe.pad_expert_input_to_capacity = true;
  } else {
    moe.latent_size = 40;
  }
  return config;
}

RunTask task_of(const std::string& name, bool dispatches = true, GemmRecipe recipe = GemmRecipe::Mxfp8) {
  RunTask task = test::learnable_task(model_of(name), DType::BF16);
  task.low_precision = {{.modules = OneOrList<std::string>("*.experts.*"),
                         .recipe = recipe,
                         .wgrad = PassRecipeName::Bf16,
                         .gradients = name == "latent" ? Fp8Format::E5M2 : Fp8Format::E4M3}};
  task.moe_fp8_dispatch = dispatches;
  task.global_batch_size = 8;
  task.steps = 3;
  return task;
}

bool is_of_routed_experts(const std::string& weight) {
  return weight.find(".experts.") != std::string::npos;
}

/// Makes updates of a single step as large as weights, so that they are not lost in the rounding of weights.
double large_learning_rate(i64) {
  return 100;
}

/// Largest relative error of rounding to E4M3, which has three fraction bits.
constexpr double kE4m3Error = 1.0 / 16;

/// Returns the change of a weight by a run of steps that begins with the weights of `start`.
test::Numbers update_of(const RunResult& run, const RunResult& start, const std::string& weight) {
  test::Numbers update = run.weights.at(weight);
  const test::Numbers& first = start.weights.at(weight);
  for (std::size_t i = 0; i < update.size(); ++i) update[i] -= first[i];
  return update;
}

/// Senders round to the values that receivers would round to, so that only the weight gradients of experts change.
TEST(Fp8DispatchTest, ChangesOnlyWeightGradientsOfExperts) {
  for (const char* name : {"deepseek", "switch", "latent"}) {
    for (const GemmRecipe recipe : {GemmRecipe::Mxfp8, GemmRecipe::Blockwise}) {
      const auto run = [&](bool dispatches, i64 steps) {
        RunTask task = task_of(name, dispatches, recipe);
        task.steps = steps;
        task.optimizer.optimizer = OptimizerKind::Sgd;  // updates are proportional to gradients
        task.lr = large_learning_rate;
        task.optimizer.clip_grad = 0;  // the norm includes the gradients of experts
        return run_layout(task, {{.dp = 2, .ep = 2}});
      };
      const RunResult with = run(true, 1), without = run(false, 1), start = run(false, 0);
      EXPECT_EQ(with.losses, without.losses) << name;
      EXPECT_NE(with.grad_norms, without.grad_norms) << name;
      for (const auto& [weight, values] : without.weights) {
        if (is_of_routed_experts(weight))
          EXPECT_LE(test::relative_distance(update_of(with, start, weight), update_of(without, start, weight)),
                    kE4m3Error)
              << name << " " << weight;
        else
          EXPECT_EQ(with.weights.at(weight), values) << name << " " << weight;
      }
    }
  }
}

/// Rows are rounded before they are sent, even to the sending rank. The sums of weight gradients of experts over tokens
/// are taken in different orders, all other values are bitwise identical.
TEST(Fp8DispatchTest, DoesNotDependOnExpertParallelSize) {
  for (const char* name : {"deepseek", "switch", "latent"}) {
    RunTask task = task_of(name);
    task.optimizer.optimizer = OptimizerKind::Sgd;
    task.lr = large_learning_rate;
    task.optimizer.clip_grad = 0;
    task.steps = 0;
    const RunResult start = run_layout(task, {{.dp = 4}});
    task.steps = 1;
    const RunResult alone = run_layout(task, {{.dp = 4}});
    for (const i64 ep : {2, 4}) {
      const RunResult exchanged = run_layout(task, {{.dp = 4, .ep = ep}});
      EXPECT_EQ(exchanged.losses, alone.losses) << name << ", ep " << ep;
      for (const auto& [weight, values] : alone.weights) {
        if (is_of_routed_experts(weight))
          EXPECT_LE(test::relative_distance(update_of(exchanged, start, weight), update_of(alone, start, weight)), 1e-3)
              << name << " " << weight;
        else
          EXPECT_EQ(exchanged.weights.at(weight), values) << name << " " << weight << ", ep " << ep;
      }
    }
  }
}

/// A layout that adds all sums in the same order as `reference`, and must be bitwise identical to it.
struct EqualLayouts {
  RunLayout layout, reference;
  const char* model = "";  ///< all if empty
};

const EqualLayouts kEqualLayouts[]{
    {{"recompute_full", {.recompute = kFull}}, {}},
    {{"recompute_selective", {.recompute = kSelective}}, {}},
    {{"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}}, {}},
    {{"on_host", {.activations_tier = OffloadTier::Host}}, {}},
    {{"ep2_recompute_full", {.dp = 2, .ep = 2, .recompute = kFull}}, {{.dp = 2, .ep = 2}}},
    {{"ep2_overlapped", {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}}, {{.dp = 2, .ep = 2}}},
    {{"ep2_overlapped_recompute_full",
      {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true, .recompute = kFull}},
     {{.dp = 2, .ep = 2}}},
    {{"ep2_pp2_zb_h1", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbH1}}, {{.dp = 2, .ep = 2}}},
    {{"ep2_pp2_overlapped", {.pp = 2, .dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}},
     {{.dp = 2, .ep = 2}}},
    {{"ep2_dp4_zero3", {.dp = 4, .ep = 2, .zero_stage = 3}}, {{.dp = 4, .ep = 2, .zero_stage = 2}}},
    {{"ep2_gather", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
     {{.dp = 2, .ep = 2}},
     "switch"},  // one expert per token: no sums
    {{"ep4_hierarchical",
      {.dp = 4, .ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2}},
     {{.dp = 4, .ep = 4}},
     "switch"},
    {{"ep4_hierarchical_overlapped",
      {.dp = 4,
       .ep = 4,
       .dispatcher = TokenDispatcherType::Hierarchical,
       .dispatch_node_ranks = 2,
       .overlap_moe_expert_parallel_comm = true}},
     {{.dp = 4, .ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2}}},
};

class Fp8DispatchSameSummationOrderTest : public testing::TestWithParam<std::tuple<const char*, EqualLayouts>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Fp8DispatchSameSummationOrderTest,
                         testing::Combine(testing::Values("deepseek", "switch", "latent"),
                                          testing::ValuesIn(kEqualLayouts)),
                         [](const auto& p) {
                           return str(std::get<0>(p.param), "_", std::get<1>(p.param).layout.name);
                         });

TEST_P(Fp8DispatchSameSummationOrderTest, IsBitwiseIdenticalToReference) {
  const auto& [model, row] = GetParam();
  if (test::built_with_cuda() && row.layout.overlap_moe_expert_parallel_comm) GTEST_SKIP() << "supports CPUs only";
  if (*row.model != '\0' && std::string(row.model) != model) GTEST_SKIP() << "adds sums in a different order";
  const RunTask task = task_of(model);
  expect_same_bits(run_layout(task, row.layout), run_layout(task, row.reference));
}

const RunLayout kOtherSummationOrders[]{
    {"dp4", {.dp = 4}},
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep4", {.dp = 4, .ep = 4}},
    {"ep2_gather", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"ep4_hierarchical", {.dp = 4, .ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2}},
    {"ep2_etp2", {.tp = 2, .dp = 2, .ep = 2, .etp = 2}},
    {"ep2_etp2_gather", {.tp = 2, .dp = 2, .ep = 2, .etp = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"tp2_sp_ep4", {.tp = 2, .dp = 2, .sequence_parallel = true, .ep = 4, .etp = 1}},
    {"cp2_ep2", {.cp = 2, .ep = 2}},
    {"ep2_pp2_zb_v", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
};

class Fp8DispatchOtherSummationOrderTest : public testing::TestWithParam<RunLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, Fp8DispatchOtherSummationOrderTest, testing::ValuesIn(kOtherSummationOrders),
                         [](const auto& p) { return p.param.name; });

/// Layouts differ from one rank by at most as much as the recipe differs from bf16. Experts are chosen at random,
/// because a token that is routed to a different expert would move losses further.
TEST_P(Fp8DispatchOtherSummationOrderTest, MatchesOneRankWithinRecipeError) {
  RunTask task = task_of("deepseek");
  task.model.num_layers = 4;
  task.model.moe.router_force_load_balancing = true;
  RunTask in_bf16 = task;
  in_bf16.low_precision.clear();
  in_bf16.moe_fp8_dispatch = false;
  static const RunResult one_rank = run_layout(task, {}), plain = run_layout(in_bf16, {});
  const RunResult result = run_layout(task, GetParam());
  const auto weights = [&](const RunResult& run) { return all_weights(run, task.model); };
  EXPECT_NE(one_rank.losses, plain.losses);
  EXPECT_LE(test::relative_distance(result.losses, one_rank.losses),
            test::relative_distance(one_rank.losses, plain.losses));
  EXPECT_LE(test::relative_distance(weights(result), weights(one_rank)),
            test::relative_distance(weights(one_rank), weights(plain)));
}

/// Two of the four exchanges of a layer send codes: the exchange of tokens, and the exchange of gradients of the
/// experts' outputs. The all-gather dispatcher weights gradients after the exchange, so it sends codes of tokens only.
TEST(Fp8DispatchTest, SendsCodesOfTokensAndGradients) {
  struct Exchange {
    TokenDispatcherType type;
    CommOp op;
    i64 coded, plain;  ///< bytes of a row in all exchanges by this operation
  };
  for (const Exchange& e :
       {Exchange{TokenDispatcherType::AllToAll, CommOp::AllToAll, 2 * kCodedBytes + 2 * kTokenBytes, 4 * kTokenBytes},
        {TokenDispatcherType::AllGather, CommOp::AllGather, kCodedBytes + kTokenBytes, 2 * kTokenBytes}}) {
    const RunLayout layout{{.dp = 2, .ep = 2, .dispatcher = e.type}};
    const auto sent_bytes = [&](bool dispatches) {
      RunTask task = task_of("deepseek", dispatches);
      task.model.mtp_num_layers = 0;
      std::atomic<i64> bytes = 0;  // of both ranks, one of which may send more rows than it receives
      run_local_ranks(2, [&](Communicator& world, int) {
        LayoutRank self(task, layout, world);
        for (const auto& [name, meter] : self.parallel().meters) meter->reset();
        self.step(0);
        bytes += (*self.parallel().meters.at("ep"))[e.op].bytes;
      });
      return bytes.load();
    };
    // All-gather also sends choices and weights in forward.
    const i64 tokens = 2 * 8 * 32, others = e.op == CommOp::AllGather ? tokens * 2 * (4 + 4) : 0;
    const i64 plain = sent_bytes(false) - others, coded = sent_bytes(true) - others;
    EXPECT_GT(plain, 0);
    EXPECT_EQ(plain % e.plain, 0);
    EXPECT_EQ(coded, plain / e.plain * e.coded);
  }
}

/// The saved tokens are codes: the estimate counts them.
TEST(Fp8DispatchTest, MemoryEstimateMatchesPeak) {
  for (const RunLayout& layout :
       {RunLayout{}, RunLayout{{.dp = 2, .ep = 2}}, RunLayout{{.dp = 2, .ep = 2, .recompute = kSelective}},
        RunLayout{{.pp = 2, .schedule = ScheduleKind::ZbH1}},
        RunLayout{{.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
        RunLayout{{.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 1}}}) {
    double plans[2] = {};
    for (const bool dispatches : {false, true}) {
      RunTask task = task_of("latent", dispatches);
      task.model.moe.latent_size = 0;
      task.model.moe.router_topk = 4;  // all experts, as the estimate assumes an even load
      task.micro_batch_size = 2;
      task.global_batch_size = test::samples_of_peak(layout);
      const double plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0].activations;
      plans[dispatches ? 1 : 0] = plan;
      EXPECT_NEAR(plan / test::peak_of(test::peaks(task, layout)[0], MemoryClass::Activations), 1, 0.01) << layout.name;
    }
    EXPECT_LT(plans[1], plans[0]);
  }
}

}  // namespace
}  // namespace mcpp::fp8_dispatch_test
