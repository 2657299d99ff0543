// No step has to connect a group of GPUs: the groups that steps use are connected before the first step.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/support/disk_folder.h"
#include "tests/support/fakes/lane_recorder.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/layouts/random_training.h"
#include "tests/support/tiny_model.h"

namespace mcpp::connected_groups_test {
namespace {

using test::LaneRecorder;
using test::LayoutRank;
using test::RandomTraining;
using test::RunLayout;
using test::RunTask;

/// Expects that two steps and an evaluation open no lane that was not open before.
void expect_connected(const RunTask& task, const RunLayout& layout) {
  std::mutex mutex;
  LaneRecorder::Opened late;
  run_local_ranks(layout.ranks(), [&](Communicator& ranks, int) {
    const auto opened = std::make_shared<LaneRecorder::Opened>();
    LayoutRank self(task, layout, ranks, [&](Communicator& all) {
      return test::RankDevices{std::make_unique<CpuDevice>(),
                               std::make_unique<LaneRecorder>(all.split(0, all.rank()), opened)};
    });
    test::SignalAfter never(1'000'000);
    self.state().set_observer(&never);
    const auto at_start = static_cast<std::ptrdiff_t>(opened->size());
    for (const i64 step : {0, 1}) self.step(step);
    self.evaluate(task, 0);
    const std::lock_guard lock(mutex);
    late.insert(late.end(), opened->begin() + at_start, opened->end());
  });
  std::ranges::sort(late);
  EXPECT_EQ(late, LaneRecorder::Opened());
}

ModelConfig model_of_four_layers() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4, model.num_attention_heads = 4;
  model.hidden_size = 32;
  model.seq_length = 8;
  return model;
}

TEST(ConnectedGroupsTest, CoverAllGroupsUsedByDenseModels) {
  const RunLayout layouts[]{
      {"tp4, whose ranks share key heads", {.tp = 4, .sequence_parallel = true}},
      {"ring", {.tp = 2, .cp = 2}},
      {"gathered", {.cp = 2, .cp_comm_type = CpCommType::AllGather}},
      {"heads", {.cp = 2, .dp = 2, .cp_comm_type = CpCommType::A2a}},
      {"pp2", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
      {"zb_v", {.pp = 2, .dp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .zero_stage = 1}},
      {"interleaved", {.pp = 2, .dp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .zero_stage = 3}},
      {"zero2, hsdp", {.dp = 4, .zero_stage = 2, .instances = 2}},
      {"zero3", {.dp = 4, .zero_stage = 3}},
      {"zero3, second copy", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
      {"bytes",
       {.dp = 4,
        .zero_stage = 3,
        .node_ranks = 2,
        .formats = {.quantized_weights = true, .quantized_gradients = true}}},
      {"factors", {.dp = 2, .zero_stage = 1, .formats = {.power_sgd_rank = 2}}},
  };
  for (const RunLayout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    expect_connected(test::learnable_task(model_of_four_layers()), layout);
  }
}

TEST(ConnectedGroupsTest, CoverAllGroupsUsedByExperts) {
  RunTask task = test::learnable_task(model_of_four_layers());
  task.model.moe.num_experts = 4;
  task.model.moe.router_topk = 2;
  for (const TokenDispatcherType dispatcher :
       {TokenDispatcherType::AllToAll, TokenDispatcherType::AllGather, TokenDispatcherType::Hierarchical}) {
    for (const RunLayout& layout :
         {RunLayout{"ep2", {.dp = 4, .ep = 2, .dispatcher = dispatcher, .zero_stage = 3}},
          RunLayout{"ep4", {.dp = 4, .ep = 4, .dispatcher = dispatcher}},
          RunLayout{"tp2, etp1", {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .dispatcher = dispatcher}},
          RunLayout{"hsdp", {.dp = 8, .ep = 2, .dispatcher = dispatcher, .zero_stage = 1, .instances = 2}}}) {
      SCOPED_TRACE(layout.name);
      expect_connected(task, layout);
    }
  }
  expect_connected(
      task, {"nodes", {.dp = 4, .ep = 4, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2}});
}

/// Muon's matrices move between ranks in messages.
TEST(ConnectedGroupsTest, CoverAllGroupsUsedByMuon) {
  RunTask task = test::learnable_task(model_of_four_layers());
  task.optimizer.optimizer = OptimizerKind::Muon;
  for (const RunLayout& layout : {RunLayout{{.tp = 2, .dp = 2}}, RunLayout{{.tp = 2, .dp = 2, .zero_stage = 1}},
                                  RunLayout{{.pp = 2, .dp = 2, .zero_stage = 3}}})
    expect_connected(task, layout);
}

TEST(ConnectedGroupsTest, CoverAllGroupsUsedByRandomLayouts) {
  const test::DiskFolder folder;
  for (u64 seed = 0; seed < 40; ++seed) {
    const RandomTraining training(seed);
    RunTask task = training.task();
    task.optimizer.offload_folder = folder.path().string();
    SCOPED_TRACE(training.text());
    expect_connected(task, training.layout());
  }
}

}  // namespace
}  // namespace mcpp::connected_groups_test
