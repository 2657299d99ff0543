// Layouts of runs with CUDA graphs: the search proposes only layouts that graphs support, and counts the memory of
// graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/run_summary.h"
#include "plan/layout_memory.h"
#include "plan/layouts.h"
#include "tests/support/errors.h"
#include "tests/support/published_runs.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace test;

class CudaGraphLayoutsTest : public testing::Test {
 protected:
  CudaGraphLayoutsTest() : config_(load_config(source_folder() / "configs/gpt2_124m.toml")) {
    config_.device.device = DeviceType::Cuda;
    config_.device.cuda_graph_impl = CudaGraphImpl::Local;
    config_.training.precision = Precision::Bf16;
    work_ = make_workload(config_);
  }
  SearchLimits limits(i64 world_size) const {
    return {.world_size = world_size, .memory_bytes = (1 - kMemoryReserve) * hardware_.memory_bytes()};
  }

  const Hardware hardware_ = catalogue("h100_sxm");
  const KernelTraits program_;
  Config config_;
  Workload work_;
};

TEST_F(CudaGraphLayoutsTest, ConsidersOnlyLayoutsThatRun) {
  std::set<i64> zero_stages;
  for_each_layout(hardware_, work_, limits(8), [&](const Layout& layout) {
    EXPECT_THAT(apply_layout(config_, layout).conflicts(), IsEmpty()) << layout.describe();
    zero_stages.insert(layout.zero_stage);
  });
  EXPECT_THAT(zero_stages, ElementsAre(0, 1));
}

/// Padded experts are not distributed.
TEST_F(CudaGraphLayoutsTest, ConsidersOnlyLayoutsThatRunWithExperts) {
  MoeConfig& moe = config_.model.moe;
  moe.num_experts = 8, moe.expert_capacity_factor = 1.25, moe.pad_expert_input_to_capacity = true;
  work_ = make_workload(config_);
  LayoutMemory memory(work_);
  i64 count = 0;
  for_each_layout(hardware_, work_, limits(8), [&](const Layout& layout) {
    const Config config = apply_layout(config_, layout);
    EXPECT_THAT(config.conflicts(), IsEmpty()) << layout.describe();
    EXPECT_NEAR(memory.peak(layout).total() / max_rank_memory(config, 8), 1, 1e-9) << layout.describe();
    ++count;
  });
  EXPECT_GT(count, 0);
  SearchLimits excluded = limits(8);
  excluded.ep = 2;
  EXPECT_THAT(error_of([&] { search_layouts(hardware_, program_, work_, excluded); }),
              HasSubstr("expert_model_parallel_size = 2, but device.cuda_graph_impl supports only data parallelism"));
}

TEST_F(CudaGraphLayoutsTest, KeepsActivationsOnDevice) {
  LayoutMemory memory(work_);
  const FittedLayout fitted =
      fit_with_offload(memory, hardware_, {.dp = 8, .micro_batch_size = 8}, /*device_bytes=*/1e9);
  EXPECT_FALSE(fitted.fits);
  EXPECT_EQ(fitted.layout.activations_tier, OffloadTier::Device);
}

TEST_F(CudaGraphLayoutsTest, MemoryMatchesDryRun) {
  LayoutMemory memory(work_);
  double largest = 0;
  for_each_layout(hardware_, work_, limits(8), [&](const Layout& layout) {
    const MemoryEstimate peak = memory.peak(layout);
    EXPECT_NEAR(peak.total() / max_rank_memory(apply_layout(config_, layout), 8), 1, 1e-9) << layout.describe();
    largest = std::max(largest, peak.recorded_passes / peak.activations);
  });
  EXPECT_GT(largest, 0.01);
}

TEST_F(CudaGraphLayoutsTest, PlannedRunKeepsGraphs) {
  const PlanRequest request{
      .hardware = "h100_sxm", .hardware_folder = (source_folder() / "configs/hardware").string(), .plan = true};
  const Config planned = plan_run(config_, request, 8).config;
  EXPECT_THAT(planned.conflicts(), IsEmpty());
  EXPECT_EQ(planned.device.cuda_graph_impl, CudaGraphImpl::Local);
}

TEST_F(CudaGraphLayoutsTest, RejectsLimitsThatGraphsExclude) {
  SearchLimits excluded = limits(8);
  excluded.tp = 2, excluded.cp = 2, excluded.pp = 2;
  const std::string error = error_of([&] { search_layouts(hardware_, program_, work_, excluded); });
  for (const char* axis :
       {"tensor_model_parallel_size = 2", "context_parallel_size = 2", "pipeline_model_parallel_size = 2"})
    EXPECT_THAT(error, HasSubstr(std::string(axis) + ", but device.cuda_graph_impl supports only data parallelism"));
}

TEST_F(CudaGraphLayoutsTest, PredictsGradientReductionAfterPasses) {
  const Layout layout{.dp = 8, .zero_stage = 1, .micro_batch_size = 8};
  Workload eager = work_;
  eager.records_passes = false;
  EXPECT_GT(step_time({hardware_, program_, work_, layout}).seconds,
            step_time({hardware_, program_, eager, layout}).seconds);
}

}  // namespace
}  // namespace mcpp
