// Memory and bytes between nodes of moe_token_dispatcher_type = "hierarchical", compared with estimates.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "megatron_cpp/setup/run_summary.h"
#include "model/block_trace.h"
#include "tests/support/build.h"
#include "tests/support/layouts/memory_run.h"

namespace mcpp::hierarchical_dispatch_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

constexpr TokenDispatcherType kHierarchical = TokenDispatcherType::Hierarchical;

const RunLayout kLayouts[]{
    {"one_node", {.dp = 4, .ep = 4, .dispatcher = kHierarchical}},
    {"two_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 2}},
    {"four_nodes", {.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = 1}},
    {"etp2", {.dp = 4, .ep = 2, .etp = 2, .dispatcher = kHierarchical, .dispatch_node_ranks = 2}},
    {"pp2_overlapped",
     {.pp = 2,
      .dp = 2,
      .ep = 2,
      .dispatcher = kHierarchical,
      .dispatch_node_ranks = 1,
      .overlap_moe_expert_parallel_comm = true}},
};

class HierarchicalMemoryTest : public testing::TestWithParam<RunLayout> {
 protected:
  void SetUp() override {
    if (test::built_with_cuda() && GetParam().overlap_moe_expert_parallel_comm) GTEST_SKIP() << "supports CPUs only";
  }
  /// Returns the largest peak of activations of each pipeline rank.
  static std::vector<double> measured_activations(const RunTask& task, const RunLayout& layout) {
    std::vector<double> result(static_cast<std::size_t>(layout.pp), 0);
    const test::Peaks peaks = test::peaks(task, layout);
    const Topology topology(layout.ranks(), layout);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      double& largest = result[static_cast<std::size_t>(topology.dense().coordinates(rank).pp)];
      largest = std::max(largest, test::peak_of(peaks[static_cast<std::size_t>(rank)], MemoryClass::Activations));
    }
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, HierarchicalMemoryTest, testing::ValuesIn(kLayouts),
                         [](const auto& p) { return p.param.name; });

/// All experts process all tokens.
TEST_P(HierarchicalMemoryTest, EvenLoadMatchesEstimate) {
  const RunLayout& layout = GetParam();
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunTask task = test::memory_task("experts", dtype, test::samples_of_peak(layout));
    const std::vector<MemoryEstimate> planned = estimate_memory_by_stage(config_of(task, layout), layout.ranks());
    const std::vector<double> measured = measured_activations(task, layout);
    for (std::size_t stage = 0; stage < measured.size(); ++stage)
      EXPECT_NEAR(planned[stage].activations / measured[stage], 1, 0.01) << name_of(dtype) << ", stage " << stage;
  }
}

/// All tokens choose the experts of one rank: a router of zeros gives all experts equal scores, ties choose the first
/// experts, and the learning rate is 0.
TEST_P(HierarchicalMemoryTest, BusiestRankMatchesEstimate) {
  const RunLayout& layout = GetParam();
  RunTask task = test::memory_task("experts", DType::F32, test::samples_of_peak(layout));
  task.model.moe.num_experts = 8, task.model.moe.router_topk = 2;
  task.lr = [](i64) { return 0.0; };
  RunTask untrained = task;
  untrained.steps = 0;
  test::Weights initial = run_layout(untrained, {}).weights;
  for (auto& [name, values] : initial)
    if (name.ends_with("router.weight")) std::ranges::fill(values, 0);
  task.initial = &initial;
  const std::vector<MemoryEstimate> planned =
      estimate_memory_by_stage(config_of(task, layout), layout.ranks(), ExpertLoad::Max);
  const std::vector<double> measured = measured_activations(task, layout);
  for (std::size_t stage = 0; stage < measured.size(); ++stage) {
    EXPECT_GE(planned[stage].activations / measured[stage], 0.99) << "stage " << stage;
    EXPECT_LE(planned[stage].activations / measured[stage], 1.01) << "stage " << stage;
  }
}

/// Returns the bytes that one microbatch of a layer with experts sends between nodes, as the planner counts them.
double predicted_bytes(const ModelConfig& model, const RunLayout& layout) {
  BlockTraces traces(model);
  const BlockTrace& trace = traces.get(activation_setup(layout, DType::F32), feed_forward_of(block_spec(model, 0)));
  const double nodes = static_cast<double>(layout.inter_node_exchange_group().ranks);
  double bytes = 0;
  for (const OpTrace* pass : {&trace.forward, &trace.backward})
    for (const MessageRecord& message : pass->messages)
      if (message.group == kExchangeGroup && message.kind == MessageKind::AllToAll)
        bytes += message.bytes * (nodes - 1) / nodes;
  return bytes;
}

/// Experts are chosen at random, from all or from groups of them.
TEST(HierarchicalVolumeTest, PredictionMatchesBytesBetweenNodes) {
  for (const i64 groups : {0, 4}) {
    for (const i64 node_ranks : {1, 2}) {
      RunTask task = test::memory_task("experts", DType::F32, 16);
      task.micro_batch_size = 1;  // as predicted_bytes()
      task.model.num_layers = 2;
      task.model.moe.layer_freq = {1};
      task.model.moe.num_experts = 16, task.model.moe.router_topk = 4;
      task.model.moe.router_num_groups = groups, task.model.moe.router_group_topk = groups / 2;
      task.model.moe.router_force_load_balancing = true;
      const RunLayout layout{{.dp = 4, .ep = 4, .dispatcher = kHierarchical, .dispatch_node_ranks = node_ranks}};
      double sent = 0;
      std::mutex mutex;
      run_local_ranks(layout.ranks(), [&](Communicator& world, int) {
        LayoutRank self(task, layout, world);
        self.parallel().meters.at("ep")->reset();
        self.step(0);
        const std::lock_guard lock(mutex);
        sent += static_cast<double>((*self.parallel().meters.at("ep"))[CommOp::AllToAll].bytes);
      });
      const double passes = static_cast<double>(task.model.num_layers * task.global_batch_size / task.micro_batch_size);
      EXPECT_NEAR(predicted_bytes(task.model, layout) / (sent / passes), 1, 0.03)
          << groups << " groups, nodes of " << node_ranks;
    }
  }
}

}  // namespace
}  // namespace mcpp::hierarchical_dispatch_test
