// Repeated executions of a step are bitwise identical on every layout, and a flipped bit on one rank names that rank,
// not the ranks that received its results.
#include "megatron_cpp/step/step_replay.h"

#include <gtest/gtest.h>

#include <mutex>

#include "megatron_cpp/train/fault_injection.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/dirty_memory.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::step_replay_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;
using Kind = ReplayVerdict::Kind;

const RunLayout kLayouts[]{
    {"one", {}},
    {"tp2", {.tp = 2}},
    {"tp4_sp_one_group", {.tp = 4, .sequence_parallel = true}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"cp2", {.cp = 2}},
    {"cp2_all_gather", {.cp = 2, .cp_comm_type = CpCommType::AllGather}},
    {"cp2_a2a", {.cp = 2, .cp_comm_type = CpCommType::A2a}},
    {"tp2_cp2_a2a", {.tp = 2, .cp = 2, .cp_comm_type = CpCommType::A2a}},
    {"cp4_a2a_p2p", {.cp = 4, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {2, 2}}},
    {"dp3", {.dp = 3}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
    {"dp4_hpz2_zero3", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
    {"tp2_pp2_dp2", {.tp = 2, .pp = 2, .dp = 2}},
    {"tp2_sp_pp2_dp2_zero2", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 2}},
};

ModelConfig mixture() {
  ModelConfig model = test::tiny_llama();
  model.moe.num_experts = 4;
  return model;
}

RunTask task_of(ModelConfig model) {
  test::set_num_layers(model, 4);
  model.num_attention_heads = 4;
  model.seq_length = 8;
  model.hidden_dropout = model.attention_dropout = 0.1;
  RunTask task = test::learnable_task(model);
  task.global_batch_size = 12;
  return task;
}

/// Compares the executions of the second step after a first one, with a fault. Uninitialized memory has other values in
/// each execution. Returns the verdicts by rank.
std::vector<ReplayVerdict> verdicts(const RunTask& task, const RunLayout& layout, const FaultInjectionConfig& fault) {
  std::vector<ReplayVerdict> result(static_cast<std::size_t>(layout.ranks()));
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.step(0);
    FaultInjection faults(std::cref(fault), rank);
    StepReplay replay(self.state(), self.parallel());
    i64 execution = 0;
    result[static_cast<std::size_t>(rank)] = replay.compare([&] {
      test::dirty_free_memory(self.device(), ++execution);
      faults.run_passes(2, self.state(), [&] { self.backward(1); });
    });
  });
  return result;
}

FaultInjectionConfig bit_flip(int rank, i64 executions) {
  return {.kind = FaultKind::BitFlip, .iteration = 2, .executions = executions, .rank = rank};
}

class StepReplayTest : public testing::TestWithParam<RunLayout> {};

TEST_P(StepReplayTest, ExecutionsWithoutFaultAreIdentical) {
  for (const ReplayVerdict& verdict : verdicts(task_of(test::tiny_gpt2()), GetParam(), {})) {
    EXPECT_EQ(verdict.kind, Kind::Reproducible) << describe(verdict.ranks);
    EXPECT_TRUE(verdict.ranks.empty());
  }
}

/// A fault in the first execution, in the first and the second, and in all three.
TEST_P(StepReplayTest, NamesRankWithFlippedBit) {
  const RunTask task = task_of(test::tiny_gpt2());
  for (int damaged = 0; damaged < GetParam().ranks(); ++damaged) {
    for (const auto& [executions, kind] :
         {std::pair{i64{1}, Kind::Transient}, {i64{2}, Kind::Persistent}, {i64{0}, Kind::Persistent}}) {
      for (const ReplayVerdict& verdict : verdicts(task, GetParam(), bit_flip(damaged, executions))) {
        EXPECT_EQ(verdict.kind, kind) << damaged << " " << executions;
        ASSERT_EQ(verdict.ranks.size(), 1U) << describe(verdict.ranks) << ", not " << damaged;
        EXPECT_EQ(verdict.ranks[0].rank, damaged) << describe(verdict.ranks);
        EXPECT_EQ(verdict.ranks[0].host, host_name());
      }
      if (damaged > 0) break;  // enough with one rank
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepReplayTest, testing::ValuesIn(kLayouts),
                         [](const auto& layout) { return std::string(layout.param.name); });

/// Expects identical executions without a fault, and with one in the first execution the name of its rank.
void expect_only_faulty_rank_is_named(const RunTask& task, const RunLayout& layout) {
  for (const ReplayVerdict& verdict : verdicts(task, layout, {}))
    EXPECT_EQ(verdict.kind, Kind::Reproducible) << layout.name << ": " << describe(verdict.ranks);
  for (int damaged = 0; damaged < layout.ranks(); ++damaged) {
    for (const ReplayVerdict& verdict : verdicts(task, layout, bit_flip(damaged, 1))) {
      EXPECT_EQ(verdict.kind, Kind::Transient) << layout.name;
      ASSERT_EQ(verdict.ranks.size(), 1U) << layout.name << ": " << describe(verdict.ranks) << ", not " << damaged;
      EXPECT_EQ(verdict.ranks[0].rank, damaged) << layout.name << ": " << describe(verdict.ranks);
    }
  }
}

TEST(StepReplayExpertsTest, NamesRankWithFlippedBit) {
  expect_only_faulty_rank_is_named(task_of(mixture()), {"dp2_ep2", {.tp = 2, .dp = 2, .ep = 2}});
}

/// Models whose messages between context-parallel ranks differ: heads with padding (keys wider than values and values
/// wider than keys), query groups that several ranks receive, and channels of scans.
TEST(StepReplayModelsTest, NamesRankWithFlippedBitWhenContextIsParallel) {
  const auto [wide_keys, wide_values] = test::tiny_latent_models();
  ModelConfig shared_groups = test::tiny_llama();
  shared_groups.num_query_groups = 1;
  for (const ModelConfig& model : {wide_keys, wide_values, shared_groups, test::tiny_mamba()}) {
    for (const RunLayout& layout :
         {RunLayout("cp2", {.cp = 2}), RunLayout("cp2_all_gather", {.cp = 2, .cp_comm_type = CpCommType::AllGather}),
          RunLayout("cp2_a2a", {.cp = 2, .cp_comm_type = CpCommType::A2a}),
          RunLayout("cp4_a2a_p2p", {.cp = 4, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {2, 2}})})
      expect_only_faulty_rank_is_named(task_of(model), layout);
  }
}

/// A run that compares executions is bitwise identical to one that does not, also if the first execution had a fault.
TEST(StepReplayRunTest, DoesNotChangeTraining) {
  RunTask task = task_of(test::tiny_gpt2());
  task.steps = 4;
  const RunLayout layout{"tp2_dp2_zero1", {.tp = 2, .dp = 2, .zero_stage = 1}};
  const test::RunResult plain = run_layout(task, layout);
  for (const FaultInjectionConfig& fault : {FaultInjectionConfig{}, bit_flip(3, 1)}) {
    test::Numbers losses;
    test::Weights weights;
    std::mutex mutex;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      LayoutRank self(task, layout, world);
      FaultInjection faults(std::cref(fault), rank);
      for (i64 step = 0; step < task.steps; ++step) {
        StepReplay replay(self.state(), self.parallel());
        replay.compare([&] { faults.run_passes(step, self.state(), [&] { self.backward(step); }); });
        const TrainingState::Measurement measured = self.state().measure();
        self.update(step);
        const StepOutcome outcome = self.state().outcome();
        EXPECT_EQ(measured.loss, outcome.loss);
        EXPECT_EQ(measured.grad_norm, outcome.grad_norm);
        if (rank == 0) losses.push_back(outcome.loss);
      }
      const std::lock_guard lock(mutex);
      self.collect(weights);
    });
    EXPECT_EQ(losses, plain.losses);
    EXPECT_EQ(weights, plain.weights);
  }
}

}  // namespace
}  // namespace mcpp::step_replay_test
