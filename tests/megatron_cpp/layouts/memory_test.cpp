// Peak memory of ranks, which are threads, in real steps compared with the estimate that --dry_run prints.
#include <gtest/gtest.h>

#include "checkpoint/save/async_save.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/build.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/memory_run.h"

namespace mcpp::memory_test {
namespace {

using test::config_of;
using test::LayoutRank;
using test::peak_of;
using test::peaks;
using test::Peaks;
using test::RunLayout;
using test::RunTask;

double planned_copy(const Config& config, const RunLayout& layout, int stage) {
  return estimate_memory_by_stage(config, layout.ranks())[static_cast<std::size_t>(stage)].save_copy;
}

constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2};
constexpr Recompute kSharded{.granularity = Recompute::Granularity::Full, .num_layers = 2, .shards_saved_inputs = true};
/// Recomputation as the planner chooses it if some of the saved activations fit.
constexpr Recompute some_layers(i64 layers) {
  return {.granularity = Recompute::Granularity::Full, .method = Recompute::Method::Block, .num_layers = layers};
}
constexpr Recompute kSelective{
    .granularity = Recompute::Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true};

const RunLayout kLayouts[]{
    {"one_rank", {}},
    {"recompute_full", {.recompute = kFull}},
    {"recompute_selective", {.recompute = kSelective}},
    {"tp2", {.tp = 2}},
    {"tp4_sp", {.tp = 4, .sequence_parallel = true}},
    {"tp2_sp_overlap", {.tp = 2, .sequence_parallel = true, .tp_comm_overlap = true}},
    {"tp2_sp_recompute_full", {.tp = 2, .sequence_parallel = true, .recompute = kFull}},
    {"tp2_sp_selective", {.tp = 2, .sequence_parallel = true, .recompute = kSelective}},
    {"pp2", {.pp = 2}},
    {"pp4", {.pp = 4}},
    {"pp4_uneven", {.pp = 4, .first_layers = 1, .last_layers = 1}},
    {"pp2_gpipe", {.pp = 2, .schedule = ScheduleKind::GPipe}},
    {"pp2_interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
    {"pp2_recompute_full", {.pp = 2, .recompute = kFull}},
    {"pp4_zb_h1", {.pp = 4, .schedule = ScheduleKind::ZbH1}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"pp4_zb_h1_selective", {.pp = 4, .schedule = ScheduleKind::ZbH1, .recompute = kSelective}},
    {"pp2_dualpipe_v", {.pp = 2, .schedule = ScheduleKind::DualPipeV, .chunks = 2}},
    {"pp2_zb_v_full", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .recompute = kFull}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
    {"dp4_zero3", {.dp = 4, .zero_stage = 3}},
    {"dp2_zero3_recompute_full", {.dp = 2, .zero_stage = 3, .recompute = kFull}},
    {"dp2_zero3_no_overlap", {.dp = 2, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
    {"cp2", {.cp = 2}},
    {"cp4_zero1", {.cp = 4, .zero_stage = 1}},
    {"cp2_gather", {.cp = 2, .cp_comm_type = CpCommType::AllGather}},
    {"cp2_selective", {.cp = 2, .recompute = kSelective}},
    {"cp2_a2a_selective", {.cp = 2, .cp_comm_type = CpCommType::A2a, .recompute = kSelective}},
    {"cp2_full", {.cp = 2, .recompute = kFull}},
    {"cp4_a2a", {.cp = 4, .cp_comm_type = CpCommType::A2a}},
    {"cp2_a2a", {.cp = 2, .cp_comm_type = CpCommType::A2a}},
    {"cp4_a2a_p2p", {.cp = 4, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {2, 2}}},
    {"tp2_sp_cp2_pp2", {.tp = 2, .cp = 2, .pp = 2, .sequence_parallel = true}},
    {"tp2_sp_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 1}},
    {"on_host", {.activations_tier = OffloadTier::Host}},
    {"on_disk", {.activations_tier = OffloadTier::File}},
    {"recompute_full_on_disk", {.recompute = kFull, .activations_tier = OffloadTier::File}},
    {"recompute_selective_on_host", {.recompute = kSelective, .activations_tier = OffloadTier::Host}},
    {"tp4", {.tp = 4}},
    {"tp4_recompute_full", {.tp = 4, .recompute = kFull}},
    {"tp4_recompute_full_cut", {.tp = 4, .recompute = kSharded}},
    {"tp2_recompute_full_cut_on_host", {.tp = 2, .recompute = kSharded, .activations_tier = OffloadTier::Host}},
    {"pp4_on_host", {.pp = 4, .activations_tier = OffloadTier::Host}},
    {"pp2_on_disk", {.pp = 2, .activations_tier = OffloadTier::File}},
    {"pp2_gpipe_on_disk", {.pp = 2, .schedule = ScheduleKind::GPipe, .activations_tier = OffloadTier::File}},
    {"pp2_zb_v_on_host", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .activations_tier = OffloadTier::Host}},
    {"dp4_zero3_on_host", {.dp = 4, .zero_stage = 3, .activations_tier = OffloadTier::Host}},
    {"cp2_on_host", {.cp = 2, .activations_tier = OffloadTier::Host}},
    {"recompute_one_layer", {.recompute = some_layers(1)}},
    {"recompute_some_layers", {.recompute = some_layers(5)}},
    {"tp2_sp_some_layers", {.tp = 2, .sequence_parallel = true, .recompute = some_layers(3)}},
    {"cp2_some_layers", {.cp = 2, .recompute = some_layers(6)}},
    {"pp2_some_layers", {.pp = 2, .recompute = some_layers(2)}},
    {"pp4_uneven_some_layers", {.pp = 4, .first_layers = 1, .last_layers = 1, .recompute = some_layers(2)}},
    {"pp2_interleaved_some_layers",
     {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .recompute = some_layers(1)}},
    {"pp2_zb_h1_some_layers", {.pp = 2, .schedule = ScheduleKind::ZbH1, .recompute = some_layers(2)}},
    {"pp2_zb_v_some_layers", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .recompute = some_layers(1)}},
    {"dp2_zero1_some_layers", {.dp = 2, .zero_stage = 1, .recompute = some_layers(4)}},
    {"dp2_zero2_some_layers", {.dp = 2, .zero_stage = 2, .recompute = some_layers(4)}},
    {"dp4_zero3_some_layers", {.dp = 4, .zero_stage = 3, .recompute = some_layers(4)}},
    {"some_layers_on_host", {.recompute = some_layers(4), .activations_tier = OffloadTier::Host}},
};

constexpr Recompute kSelectiveOfExperts{
    .granularity = Recompute::Granularity::Selective, .layernorm = true, .mlp_act = true, .moe_act = true};

const RunLayout kExpertLayouts[]{
    {"one_rank", {}},
    {"recompute_full", {.recompute = kFull}},
    {"recompute_selective", {.recompute = kSelectiveOfExperts}},
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep2_recompute_selective", {.dp = 2, .ep = 2, .recompute = kSelectiveOfExperts}},
    {"ep2_zero1", {.dp = 4, .ep = 2, .zero_stage = 1}},
    {"ep2_zero2", {.dp = 4, .ep = 2, .zero_stage = 2}},
    {"ep2_zero3", {.dp = 4, .ep = 2, .zero_stage = 3}},
    {"zero3", {.dp = 4, .zero_stage = 3}},
    {"ep2_zero3_recompute_full", {.dp = 4, .ep = 2, .zero_stage = 3, .recompute = kFull}},
    {"recompute_some_layers", {.recompute = some_layers(4)}},
    {"ep2_zero3_some_layers", {.dp = 4, .ep = 2, .zero_stage = 3, .recompute = some_layers(3)}},
    {"ep2_pp2_some_layers", {.pp = 2, .dp = 2, .ep = 2, .recompute = some_layers(2)}},
    {"ep2_pp2", {.pp = 2, .dp = 2, .ep = 2}},
    {"ep2_pp2_on_host", {.pp = 2, .dp = 2, .ep = 2, .activations_tier = OffloadTier::Host}},
    {"tp2_sp_ep2", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
    {"tp2_sp_etp2", {.tp = 2, .sequence_parallel = true, .etp = 2}},
    {"ep2_gather", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"ep2_pp4_zb_h1", {.pp = 4, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbH1}},
    {"ep2_pp2_zb_v", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"ep2_overlapped", {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}},
    {"ep2_overlapped_recompute_full", {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true, .recompute = kFull}},
    {"tp2_sp_ep2_overlapped",
     {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1, .overlap_moe_expert_parallel_comm = true}},
    {"ep2_pp2_overlapped", {.pp = 2, .dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}},
    {"ep2_pp2_zb_v_overlapped",
     {.pp = 2, .dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true, .schedule = ScheduleKind::ZbV, .chunks = 2}},
};

class MemoryEstimateTest : public testing::TestWithParam<std::tuple<const char*, DType, RunLayout>> {};

TEST_P(MemoryEstimateTest, MatchesPeakOfEveryRank) {
  const auto& [name, dtype, layout] = GetParam();
  if (test::built_with_cuda() && layout.overlap_moe_expert_parallel_comm) GTEST_SKIP() << "supports CPUs only";
  const test::DiskFolder folder;
  RunTask task = test::memory_task(name, dtype, test::samples_of_peak(layout));
  task.optimizer.offload_folder = folder.path().string();
  const Peaks measured = peaks(task, layout);
  const std::vector<MemoryEstimate> plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks());
  const Topology topology(layout.ranks(), layout);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const MemoryTable& table = measured[static_cast<std::size_t>(rank)];
    const MemoryEstimate& e = plan[static_cast<std::size_t>(topology.dense().coordinates(rank).pp)];
    const auto expect_near = [&](double estimate, double peak, double tolerance, const char* what) {
      EXPECT_NEAR(estimate / peak, 1, tolerance) << what << " of rank " << rank;
    };
    const bool delays_wgrad = row_of(layout.schedule).splits_backward;
    expect_near(e.params, peak_of(table, MemoryClass::Params), 1e-9, "parameters");
    expect_near(e.grads, peak_of(table, MemoryClass::Grads), 1e-9, "gradients");
    expect_near(e.optimizer_state, peak_of(table, MemoryClass::OptimizerState), 1e-9, "optimizer state");
    const double tolerance = delays_wgrad ? 0.01 : task.model.moe.num_experts > 0 ? 0.01 : 0.001;
    expect_near(e.activations, peak_of(table, MemoryClass::Activations), tolerance, "activations");
    // The estimate excludes Workspace, which depends on the matrix kernels of the host.
    const double all = static_cast<double>(table.total.peak);
    EXPECT_LE(e.total(), 1.01 * all) << "total of rank " << rank;
    EXPECT_GE(e.total(), 0.98 * (all - peak_of(table, MemoryClass::Workspace))) << "total of rank " << rank;
  }
}

std::string name_of_case(const testing::TestParamInfo<MemoryEstimateTest::ParamType>& p) {
  return str(std::get<0>(p.param), "_", name_of(std::get<1>(p.param)), "_", std::get<2>(p.param).name);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryEstimateTest,
                         testing::Combine(testing::Values("gpt2", "llama", "latent"),
                                          testing::Values(DType::F32, DType::BF16), testing::ValuesIn(kLayouts)),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(MultiTokenPrediction, MemoryEstimateTest,
                         testing::Combine(testing::Values("mtp"), testing::Values(DType::F32),
                                          testing::ValuesIn(kLayouts)),
                         [](const auto& p) { return str(std::get<2>(p.param).name); });

/// Multi-token prediction in a stage without the output.
const RunLayout kPredictionStageLayouts[]{
    {"pp2_first_stage", {.pp = 2, .stages = "Et*8mm|L"}},
    {"pp4", {.pp = 4, .stages = "Et*4|t*4|mm|L"}},
    {"pp4_after_layers", {.pp = 4, .stages = "Et*3|t*3|ttmm|L"}},
    {"pp4_gpipe", {.pp = 4, .schedule = ScheduleKind::GPipe, .stages = "Et*3|t*3|ttmm|L"}},
    {"pp4_recompute_full", {.pp = 4, .stages = "Et*3|t*3|ttmm|L", .recompute = kFull}},
    {"pp4_recompute_selective", {.pp = 4, .stages = "Et*3|t*3|ttmm|L", .recompute = kSelective}},
    {"pp4_zb_h1", {.pp = 4, .schedule = ScheduleKind::ZbH1, .stages = "Et*4|t*4|mm|L"}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .stages = "Et*3|t*3|ttmm|L"}},
    {"pp2_interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .stages = "Et*3|t*3|ttmm|L"}},
    {"pp4_on_host", {.pp = 4, .stages = "Et*3|t*3|ttmm|L", .activations_tier = OffloadTier::Host}},
    {"tp2_sp_pp4", {.tp = 2, .pp = 4, .sequence_parallel = true, .stages = "Et*4|t*4|mm|L"}},
    {"tp2_cp2_pp2", {.tp = 2, .cp = 2, .pp = 2, .stages = "Et*8mm|L"}},
    {"pp4_dp2_zero1", {.pp = 4, .dp = 2, .stages = "Et*4|t*4|mm|L", .zero_stage = 1}},
    {"pp4_dp2_zero2", {.pp = 4, .dp = 2, .stages = "Et*4|t*4|mm|L", .zero_stage = 2}},
    {"pp4_dp2_zero3", {.pp = 4, .dp = 2, .stages = "Et*4|t*4|mm|L", .zero_stage = 3}},
    {"pp2_dp2_zero3_first_stage", {.pp = 2, .dp = 2, .stages = "Et*8mm|L", .zero_stage = 3}},
};
INSTANTIATE_TEST_SUITE_P(PredictionStage, MemoryEstimateTest,
                         testing::Combine(testing::Values("mtp"), testing::Values(DType::F32, DType::BF16),
                                          testing::ValuesIn(kPredictionStageLayouts)),
                         name_of_case);

const RunLayout kExpertPredictionStageLayouts[]{
    {"pp4", {.pp = 4, .stages = "Et*3|t*3|ttmm|L"}},
    {"ep2_pp4_zb_h1", {.pp = 4, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbH1, .stages = "Et*4|t*4|mm|L"}},
    {"ep2_pp2_zero1", {.pp = 2, .dp = 2, .ep = 2, .stages = "Et*8mm|L", .zero_stage = 1}},
    {"ep2_pp2_zero3", {.pp = 2, .dp = 4, .ep = 2, .stages = "Et*8mm|L", .zero_stage = 3}},
};
INSTANTIATE_TEST_SUITE_P(ExpertPredictionStage, MemoryEstimateTest,
                         testing::Combine(testing::Values("mtp_experts"), testing::Values(DType::F32, DType::BF16),
                                          testing::ValuesIn(kExpertPredictionStageLayouts)),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(ExpertLayouts, MemoryEstimateTest,
                         testing::Combine(testing::Values("experts", "latent_experts", "mtp_experts"),
                                          testing::Values(DType::F32, DType::BF16), testing::ValuesIn(kExpertLayouts)),
                         name_of_case);

const RunLayout kPaddedExpertLayouts[]{
    {"one_rank", {}},
    {"recompute_full", {.recompute = kFull}},
    {"recompute_selective", {.recompute = kSelectiveOfExperts}},
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep2_etp2", {.dp = 4, .ep = 2, .etp = 2}},
    {"ep2_zero3", {.dp = 4, .ep = 2, .zero_stage = 3}},
    {"ep2_pp2_some_layers", {.pp = 2, .dp = 2, .ep = 2, .recompute = some_layers(2)}},
    {"tp2_sp_ep2_gather",
     {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1, .dispatcher = TokenDispatcherType::AllGather}},
    {"tp2_sp_etp2_gather",
     {.tp = 2, .sequence_parallel = true, .etp = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"ep2_gather", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"ep4_hierarchical", {.dp = 4, .ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2}},
    {"ep2_overlapped", {.dp = 2, .ep = 2, .overlap_moe_expert_parallel_comm = true}},
    {"ep2_pp2_zb_v", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
};
INSTANTIATE_TEST_SUITE_P(PaddedExpertLayouts, MemoryEstimateTest,
                         testing::Combine(testing::Values("padded_experts"), testing::Values(DType::F32, DType::BF16),
                                          testing::ValuesIn(kPaddedExpertLayouts)),
                         name_of_case);

/// All tokens choose the experts of one rank: a router of zeros gives all experts equal scores, ties choose the first
/// experts, and the learning rate is 0.
class BusyRankMemoryTest : public testing::TestWithParam<RunLayout> {
 protected:
  static RunTask unbalanced_task(const RunLayout& layout, double capacity_factor = 0) {
    RunTask task = test::memory_task("experts", DType::F32, test::samples_of_peak(layout));
    task.model.moe.num_experts = 8, task.model.moe.router_topk = 2;
    task.model.moe.expert_capacity_factor = capacity_factor;
    task.lr = [](i64) { return 0.0; };
    return task;
  }
  static test::Weights weights_with_zero_routers(RunTask task) {
    task.steps = 0;
    test::Weights initial = run_layout(task, {}).weights;
    for (auto& [name, values] : initial)
      if (name.ends_with("router.weight")) std::fill(values.begin(), values.end(), 0);
    return initial;
  }
};

TEST_P(BusyRankMemoryTest, MatchesEstimateOfBusiestRank) {
  const RunLayout& layout = GetParam();
  for (const double capacity_factor : {0.0, 1.25}) {
    RunTask task = unbalanced_task(layout, capacity_factor);
    const test::Weights initial = weights_with_zero_routers(task);
    task.initial = &initial;
    const Peaks measured = peaks(task, layout);
    const Config config = config_of(task, layout);
    const std::vector<MemoryEstimate> even = estimate_memory_by_stage(config, layout.ranks()),
                                      busiest_plan = estimate_memory_by_stage(config, layout.ranks(), ExpertLoad::Max);
    std::vector<double> busiest(busiest_plan.size(), 0);
    const Topology topology(layout.ranks(), layout);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      double& peak = busiest[static_cast<std::size_t>(topology.dense().coordinates(rank).pp)];
      peak = std::max(peak, peak_of(measured[static_cast<std::size_t>(rank)], MemoryClass::Activations));
    }
    double min_ratio = 1;  // minimum of an even load's estimate divided by the peak
    for (std::size_t stage = 0; stage < busiest_plan.size(); ++stage) {
      SCOPED_TRACE(str("capacity ", capacity_factor, ", stage ", stage));
      const double planned = busiest_plan[stage].activations / busiest[stage];
      EXPECT_GE(planned, 0.99);
      // A capacity reduces the sent tokens, and not all experts of the rank are chosen here.
      EXPECT_LE(planned, capacity_factor > 0 ? 1.5 : 1.01);
      min_ratio = std::min(min_ratio, even[stage].activations / busiest[stage]);
    }
    if (capacity_factor == 0) {
      EXPECT_LT(min_ratio, 0.8) << "the load is even";
    }
  }
}

constexpr TokenDispatcherType kGather = TokenDispatcherType::AllGather;
INSTANTIATE_TEST_SUITE_P(
    Layouts, BusyRankMemoryTest,
    testing::Values(RunLayout{"ep2", {.dp = 2, .ep = 2}}, RunLayout{"ep4", {.dp = 4, .ep = 4}},
                    RunLayout{"ep2_etp2", {.dp = 4, .ep = 2, .etp = 2}},
                    RunLayout{"tp2_sp_ep2_etp1", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
                    RunLayout{"gather_ep4", {.dp = 4, .ep = 4, .dispatcher = kGather}},
                    RunLayout{"recompute_full", {.dp = 4, .ep = 4, .recompute = kFull}},
                    RunLayout{"recompute_selective", {.dp = 4, .ep = 4, .recompute = kSelectiveOfExperts}},
                    RunLayout{"pp2", {.pp = 2, .dp = 4, .ep = 4}},
                    RunLayout{"pp2_gpipe", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::GPipe}},
                    RunLayout{"pp2_interleaved",
                              {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
                    RunLayout{"pp4_zb_h1", {.pp = 4, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbH1}},
                    RunLayout{"pp2_zb_v", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
                    RunLayout{"zero3", {.dp = 4, .ep = 2, .zero_stage = 3}}),
    [](const auto& p) { return str(p.param.name); });

/// `evaluate` checks this memory: the weights include only the rank's own experts.
TEST(WeightMemoryTest, CountsOnlyExpertsOfRank) {
  for (const RunLayout& layout : {RunLayout{}, RunLayout{{.dp = 4, .ep = 4}}, RunLayout{{.tp = 2, .dp = 2, .ep = 2}},
                                  RunLayout{{.tp = 2, .ep = 2, .etp = 1}}}) {
    const Config config = config_of(test::memory_task("experts", DType::F32, test::samples_of_peak(layout)), layout);
    EXPECT_NEAR(weight_bytes(config) / estimate_memory_by_stage(config, layout.ranks())[0].params, 1, 0.02);
  }
}

/// The bytes missing in device memory equal the bytes in the other tier, except for delayed offloads, which have been
/// reloaded already.
TEST(OffloadedActivationMemoryTest, MatchesOffloadedBytes) {
  const test::DiskFolder folder;
  for (const RunLayout& base : {RunLayout{}, RunLayout{{.recompute = kFull}}, RunLayout{{.recompute = kSelective}},
                                RunLayout{{.tp = 2, .recompute = kSharded}}, RunLayout{{.pp = 2}},
                                RunLayout{{.pp = 4, .schedule = ScheduleKind::ZbH1}}}) {
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      RunTask task = test::memory_task("gpt2", DType::BF16, test::samples_of_peak(base));
      task.optimizer.offload_folder = folder.path().string();
      RunLayout offloaded_layout = base;
      offloaded_layout.activations_tier = tier;
      const MemoryEstimate base_plan = estimate_memory_by_stage(config_of(task, base), base.ranks())[0],
                           plan = estimate_memory_by_stage(config_of(task, offloaded_layout), base.ranks())[0];
      if (tier == OffloadTier::Host) {
        EXPECT_LT(plan.activations, base_plan.activations);  // the buffers of a disk are larger than some inputs
      }
      const double planned =
          tier == OffloadTier::Host ? plan.offloaded_activations : static_cast<double>(plan.activations_on_disk);
      run_local_ranks(base.ranks(), [&](Communicator& world, int rank) {
        LayoutRank self(task, offloaded_layout, world);
        self.step(0);
        const OffloadedBytes offloaded =
            self.state().offloaded_bytes()[static_cast<std::size_t>(MemoryClass::Activations)];
        if (rank == 0) {
          EXPECT_EQ(static_cast<double>(offloaded.in_host + offloaded.on_disk), planned);
        }
      });
    }
  }
}

/// With offloaded weights, the gathered weights and the buffers of a disk remain.
TEST(OffloadedWeightMemoryTest, MatchesPeak) {
  const test::DiskFolder folder;
  const RunLayout layout{{.dp = 2, .zero_stage = 3}};
  RunTask task = test::memory_task("gpt2", DType::BF16, test::samples_of_peak(layout));
  task.optimizer.offload_folder = folder.path().string();
  const MemoryEstimate base_plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0];
  for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
    task.optimizer.offload_params = tier;
    const MemoryEstimate plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0];
    if (tier == OffloadTier::Host) {
      EXPECT_NEAR(plan.params + plan.offloaded_params, base_plan.params, 0.02 * base_plan.params);
    }
    for (const MemoryTable& table : peaks(task, layout)) {
      const double measured = peak_of(table, MemoryClass::Params);
      EXPECT_NEAR(plan.params / measured, 1, tier == OffloadTier::Host ? 1e-9 : 0.02);
    }
  }
}

/// Muon has one state for matrices and two for all other parameters.
TEST(MuonMemoryTest, MatchesPeak) {
  for (const RunLayout& layout : {RunLayout{}, RunLayout{{.tp = 2, .dp = 2, .zero_stage = 1}}}) {
    RunTask task = test::memory_task("llama", DType::BF16, test::samples_of_peak(layout));
    const double adam = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0].optimizer_state;
    task.optimizer.optimizer = OptimizerKind::Muon;
    const double muon = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0].optimizer_state;
    EXPECT_LT(muon, 0.8 * adam);
    for (const MemoryTable& table : peaks(task, layout))
      EXPECT_NEAR(muon / peak_of(table, MemoryClass::OptimizerState), 1, 0.06);
  }
}

/// All tensors of the rank with the highest peak, including kernel workspaces: within 0.5 % on average and 1.5 % at
/// worst.
TEST(TotalMemoryTest, MatchesPeakOfLargestRank) {
  ModelConfig model = test::memory_model("gpt2");
  model.hidden_size = 128, model.ffn_hidden_size = 512;  // as in real models, tensors outweigh kernel workspaces
  const test::DiskFolder folder;
  double sum = 0;
  int layouts = 0;
  for (const RunLayout& layout : kLayouts) {
    RunTask task = test::learnable_task(model, DType::F32);
    task.optimizer.offload_folder = folder.path().string();
    task.global_batch_size = 16 * layout.dp;
    task.micro_batch_size = 4;
    double planned = 0, measured = 0;
    for (const MemoryEstimate& rank : estimate_memory_by_stage(config_of(task, layout), layout.ranks()))
      planned = std::max(planned, rank.total() + test::gemm_workspace_bytes());
    for (const MemoryTable& rank : peaks(task, layout))
      measured = std::max(measured, static_cast<double>(rank.total.peak));
    const double error = planned / measured - 1;
    std::printf("%-28s planned %9.0f  measured %9.0f  off %+.2f %%\n", layout.name, planned, measured, 100 * error);
    EXPECT_LE(std::abs(error), 0.015) << layout.name;
    sum += std::abs(error);
    ++layouts;
  }
  EXPECT_LE(sum / layouts, 0.005);
}

/// States are on a disk, alone and with everything else, with short and long segments.
TEST(TotalMemoryTest, MatchesPeakWithStatesOnDisk) {
  ModelConfig model = test::memory_model("gpt2");
  model.hidden_size = 128, model.ffn_hidden_size = 512;
  const test::DiskFolder folder;
  double sum = 0;
  int rows = 0;
  for (const bool all : {false, true}) {
    for (const i64 segment : {i64{1} << 14, i64{1} << 16, i64{1} << 22}) {
      for (RunLayout layout : {RunLayout{"one_rank", {}}, RunLayout{"zero1", {.dp = 2, .zero_stage = 1}},
                               RunLayout{"zero3", {.dp = 2, .zero_stage = 3}}}) {
        if (all && layout.zero_stage < 3) continue;
        RunTask task = test::learnable_task(model, DType::F32);
        task.optimizer.offload_folder = folder.path().string();
        task.optimizer.offload = OffloadTier::File;
        task.optimizer.offload_segment_size = segment;
        if (all) task.optimizer.offload_params = layout.activations_tier = OffloadTier::File;
        task.global_batch_size = 16 * layout.dp;
        task.micro_batch_size = 2;
        double measured = 0, planned = test::gemm_workspace_bytes();
        planned += estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0].total();
        for (const MemoryTable& rank : peaks(task, layout, 6))
          measured = std::max(measured, static_cast<double>(rank.total.peak));
        const double error = planned / measured - 1;
        std::printf("%-9s segments of %7d%s planned %9.0f  measured %9.0f  off %+.2f %%\n", layout.name,
                    static_cast<int>(segment), all ? ", all on disk" : "", planned, measured, 100 * error);
        EXPECT_LE(std::abs(error), 0.015) << layout.name << ", " << segment;
        sum += std::abs(error);
        ++rows;
      }
    }
  }
  EXPECT_LE(sum / rows, 0.005);
}

/// Low-precision moments and gradients, and offloaded states.
TEST(LowPrecisionStateMemoryTest, MatchesPeak) {
  const test::DiskFolder folder;
  const auto expect_planned = [](const RunTask& task, const RunLayout& layout) {
    const MemoryEstimate plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0];
    for (const MemoryTable& table : peaks(task, layout)) {
      const double states = peak_of(table, MemoryClass::OptimizerState);
      EXPECT_NEAR(plan.optimizer_state, states, 0.08 * states + 1);
      EXPECT_NEAR(plan.grads / peak_of(table, MemoryClass::Grads), 1, 0.06);
    }
    return plan;
  };
  for (const RunLayout& layout : {RunLayout{}, RunLayout{{.dp = 2, .zero_stage = 2}}}) {
    RunTask task = test::memory_task("gpt2", DType::BF16, test::samples_of_peak(layout));
    const MemoryEstimate full = expect_planned(task, layout);
    RunTask small = task;
    small.optimizer.exp_avg_dtype = StateDType::Bf16;
    small.optimizer.exp_avg_sq_dtype = StateDType::Uint8;
    if (layout.zero_stage == 2) small.optimizer.main_grads_dtype = GradDType::Bf16;
    EXPECT_NEAR(expect_planned(small, layout).optimizer_state / full.optimizer_state, (4 + 2 + 17.0 / 16) / 12, 1e-6);
    small.optimizer.store_param_remainders = true, small.optimizer.ema_decay = 0.9;
    EXPECT_NEAR(expect_planned(small, layout).optimizer_state / full.optimizer_state,
                (17.0 / 8 + 2 + 17.0 / 16 + 4) / 12, 1e-6);
    RunTask rounded = task;
    rounded.optimizer.stochastic_rounding = true;
    rounded.optimizer.exp_avg_dtype = StateDType::Fp8E4m3;
    EXPECT_NEAR(expect_planned(rounded, layout).optimizer_state / full.optimizer_state, (17.0 / 16 + 4) / 12, 1e-6);
    task.optimizer.offload = OffloadTier::Host;
    const MemoryEstimate on_host = expect_planned(task, layout);
    EXPECT_EQ(on_host.optimizer_state, 0);
    EXPECT_EQ(on_host.offloaded, full.optimizer_state);
    task.optimizer.offload = OffloadTier::File;
    task.optimizer.offload_folder = folder.path().string();
    task.optimizer.offload_segment_size = 16384;  // less than the ranks' update unit
    EXPECT_LT(expect_planned(task, layout).optimizer_state, 0.5 * full.optimizer_state);
  }
}

/// Secondary weight shards, and messages of one or two bytes per element: these are short-lived, so the estimate is
/// approximate.
TEST(CompressedCommunicationMemoryTest, MatchesPeak) {
  using enum GradReduceFormat;
  const RunLayout layouts[]{
      {"copy", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
      {"packed_copy", {.dp = 4, .zero_stage = 3, .node_ranks = 2, .formats = {.quantized_weights = true}}},
      {"packed", {.dp = 2, .zero_stage = 3, .formats = {.quantized_weights = true, .quantized_gradients = true}}},
      {"no_overlap",
       {.dp = 2,
        .zero_stage = 3,
        .formats = {.quantized_weights = true},
        .overlap_grad_reduce = false,
        .overlap_param_gather = false}},
      {"zero1", {.dp = 2, .zero_stage = 1, .formats = {.quantized_weights = true, .quantized_gradients = true}}},
      {"zero2", {.dp = 2, .zero_stage = 2, .formats = {.quantized_gradients = true}}},
      {"zero1_bf16", {.dp = 2, .zero_stage = 1, .formats = {.grad_reduce_dtype = GradDType::Bf16}}},
      {"zero2_bf16", {.dp = 2, .zero_stage = 2, .formats = {.grad_reduce_dtype = GradDType::Bf16}}},
      {"zero3_bf16", {.dp = 4, .zero_stage = 3, .formats = {.grad_reduce_dtype = GradDType::Bf16}}},
      {"bf16_nodes", {.dp = 4, .zero_stage = 1, .node_ranks = 2, .formats = {.grad_reduce_dtype = GradDType::Bf16}}},
      {"zero3_bf16_nodes",
       {.dp = 4, .zero_stage = 3, .node_ranks = 2, .formats = {.grad_reduce_dtype = GradDType::Bf16}}},
      {"nodes", {.dp = 4, .zero_stage = 1, .node_ranks = 2, .formats = {.quantized_gradients = true}}},
      {"zero2_nodes", {.dp = 4, .zero_stage = 2, .node_ranks = 2, .formats = {.quantized_gradients = true}}},
      {"z3_nodes",
       {.dp = 4,
        .zero_stage = 3,
        .node_ranks = 2,
        .formats = {.quantized_weights = true, .quantized_gradients = true}}},
      {"factors", {.dp = 2, .zero_stage = 1, .formats = {.power_sgd_rank = 4}}}};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : layouts) {
      SCOPED_TRACE(str(layout.name, " ", name_of(dtype)));
      const RunTask task = test::memory_task("gpt2", dtype, test::samples_of_peak(layout));
      const MemoryEstimate plan = estimate_memory_by_stage(config_of(task, layout), layout.ranks())[0];
      for (const MemoryTable& table : peaks(task, layout)) {
        EXPECT_NEAR(plan.params / peak_of(table, MemoryClass::Params), 1, 0.1);
        EXPECT_NEAR(plan.grads / peak_of(table, MemoryClass::Grads), 1, 0.1);
        EXPECT_NEAR(plan.optimizer_state / peak_of(table, MemoryClass::OptimizerState), 1, 0.03);
        const double all = static_cast<double>(table.total.peak);
        EXPECT_LE(plan.total(), 1.05 * all);
        EXPECT_GE(plan.total(), 0.97 * (all - peak_of(table, MemoryClass::Workspace)));
      }
    }
  }
}

/// An asynchronous save copies the shards of the largest kind of save.
TEST(SaveMemoryEstimateTest, MatchesCopyOfAsyncSave) {
  const RunLayout layouts[]{{},
                            {{.tp = 2}},
                            {{.pp = 2}},
                            {{.dp = 2}},
                            {{.dp = 2, .zero_stage = 1}},
                            {{.dp = 4, .zero_stage = 3}},
                            {{.dp = 4, .zero_stage = 2, .instances = 2}}};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : layouts) {
      const RunTask task = test::memory_task("llama", dtype, test::samples_of_peak(layout));
      Config in_shared_folder = config_of(task, layout);
      in_shared_folder.checkpoint.async_save = true;
      in_shared_folder.checkpoint.save_interval = 10;
      Config in_local_folder = in_shared_folder;
      in_local_folder.checkpoint.local_save_interval = 1;
      run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
        LayoutRank self(task, layout, world);
        self.step(0);
        const int stage = self.parallel().topology.dense().coordinates(rank).pp;
        const auto expect_copy = [&](const Config& config, std::span<const NamedShard> shards) {
          HostStaging staging;
          staging.begin(shards);
          staging.copy_rest();
          EXPECT_NEAR(planned_copy(config, layout, stage) / static_cast<double>(staging.bytes()), 1, 0.06)
              << "rank " << rank << " of " << layout.ranks() << ", ZeRO " << layout.zero_stage;
        };
        expect_copy(in_shared_folder, shards_to_save(self.state()));
        expect_copy(in_local_folder, shards_to_load(self.state()));
      });
    }
  }
}

TEST(SaveMemoryEstimateTest, IsZeroForSynchronousSaves) {
  Config config = config_of(test::memory_task("llama", DType::F32, 16), {});
  const auto planned = [&] { return planned_copy(config, {}, 0); };
  config.checkpoint.save_interval = 10;
  const double without = estimate_memory_by_stage(config, 1)[0].total();
  EXPECT_EQ(planned(), 0);
  EXPECT_EQ(describe_run(config, 1).find("copy for saves"), std::string::npos);
  config.checkpoint.async_save = true;
  EXPECT_GT(planned(), 0);
  EXPECT_EQ(estimate_memory_by_stage(config, 1)[0].total(), without + planned());
  EXPECT_NE(describe_run(config, 1).find("copy for saves"), std::string::npos);
  config.device.device = DeviceType::Cuda;
  EXPECT_EQ(planned(), 0) << "not in the GPU's memory";
  config.device.device = DeviceType::Cpu;
  config.checkpoint.save_interval = 0;
  EXPECT_EQ(planned(), 0) << "the last save is synchronous";
}

TEST(MemoryReportTest, NamesLargestRank) {
  const RunTask task = test::memory_task("llama", DType::F32, 16);
  const auto has = [&](const RunLayout& layout, const char* text) {
    return describe_run(config_of(task, layout), layout.ranks()).find(text) != std::string::npos;
  };
  EXPECT_TRUE(has({{.pp = 2}}, " per rank estimated, most on pipeline rank 0\n"));
  EXPECT_TRUE(has({{.pp = 2, .first_layers = 1}}, " per rank estimated, most on pipeline rank 1\n"));
  EXPECT_TRUE(has({{.tp = 2}}, " per rank estimated\n"));
}

}  // namespace
}  // namespace mcpp::memory_test
