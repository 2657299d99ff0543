// Activations in host memory, on a disk, or sharded over the tensor-parallel ranks, on any layout: bitwise identical to
// a run that keeps them on the device, with less memory. Ranks are threads.
#include <gtest/gtest.h>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::RunLayout;
using test::RunTask;

constexpr Recompute kFull{.granularity = Recompute::Granularity::Full, .num_layers = 2};
constexpr Recompute kBlock{
    .granularity = Recompute::Granularity::Full, .method = Recompute::Method::Block, .num_layers = 1};
constexpr Recompute kSelective{.granularity = Recompute::Granularity::Selective,
                               .core_attn = true,
                               .layernorm = true,
                               .mlp_act = true,
                               .moe_act = true};

const std::vector<RunLayout> kLayouts{
    {"one_rank", {}},
    {"full", {.recompute = kFull}},
    {"block", {.recompute = kBlock}},
    {"selective", {.recompute = kSelective}},
    {"tp2_sp_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true}},
    {"tp2_full", {.tp = 2, .recompute = kFull}},
    {"pp4_gpipe", {.pp = 4, .schedule = ScheduleKind::GPipe}},
    {"pp2_interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
    {"pp4_selective", {.pp = 4, .recompute = kSelective}},
    {"pp4_zb_h1", {.pp = 4, .schedule = ScheduleKind::ZbH1}},
    {"pp2_zb_v_full", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .recompute = kFull}},
    {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
    {"dp2_zero3_full", {.dp = 2, .zero_stage = 3, .recompute = kFull}},
    {"cp2", {.cp = 2}},
    {"cp2_selective", {.cp = 2, .cp_comm_type = CpCommType::A2a, .recompute = kSelective}},
};

const std::vector<RunLayout> kExpertLayouts{
    {"one_rank", {}},
    {"selective", {.recompute = kSelective}},
    {"full", {.recompute = kFull}},
    {"ep2_pp2", {.pp = 2, .dp = 2, .ep = 2}},
    {"ep2_gather", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::AllGather}},
    {"ep2_hierarchical", {.dp = 2, .ep = 2, .dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 1}},
};

class ActivationOffloadLayoutsTest : public testing::Test {
 protected:
  RunTask task_of(bool experts, DType dtype) const {
    ModelConfig model = experts ? test::tiny_llama() : test::tiny_gpt2();
    model.num_layers = 4;
    model.hidden_size = 16;
    model.num_attention_heads = 4;
    model.num_query_groups = experts ? 2 : 4;
    model.seq_length = 8;
    if (experts) {
      model.moe.num_experts = 4;
      model.moe.router_topk = 2;
      model.moe.layer_freq = {0, 1, 1, 1};
      model.moe.ffn_hidden_size = 24;
      model.moe.aux_loss_coeff = 0.01;
      model.moe.shared_expert_intermediate_size = 16;
    }
    RunTask task = test::learnable_task(model, dtype);
    task.steps = 4;
    task.optimizer.offload_folder = folder_.path().string();
    return task;
  }
  void expect_same_bits(const RunTask& task, const RunLayout& layout) const {
    const test::RunResult on_device = test::run_layout(task, layout);
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(layout.name, " ", name_of(task.dtype), " ", enum_name(tier)));
      RunLayout offloaded = layout;
      offloaded.activations_tier = tier;
      test::expect_same_bits(test::run_layout(task, offloaded), on_device);
    }
  }

  const test::DiskFolder folder_;
};

TEST_F(ActivationOffloadLayoutsTest, IsBitwiseIdenticalToNoOffload) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : kLayouts) expect_same_bits(task_of(false, dtype), layout);
  }
}

TEST_F(ActivationOffloadLayoutsTest, IsBitwiseIdenticalToNoOffloadWithExperts) {
  for (const RunLayout& layout : kExpertLayouts) expect_same_bits(task_of(true, DType::F32), layout);
}

TEST_F(ActivationOffloadLayoutsTest, ShardedInputsAreBitwiseIdenticalToFullInputs) {
  for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
    for (const i64 tp : {2, 4}) {
      for (const Recompute& recompute : {kFull, kBlock}) {
        RunLayout layout{{.tp = tp, .pp = 4 / tp, .recompute = recompute}};
        const test::RunResult whole = test::run_layout(task_of(false, DType::BF16), layout);
        layout.recompute.shards_saved_inputs = true;
        layout.activations_tier = tier;
        SCOPED_TRACE(str(tp, " ", enum_name(tier)));
        test::expect_same_bits(test::run_layout(task_of(false, DType::BF16), layout), whole);
      }
    }
  }
}

/// A step that is aborted half-way leaves no offloaded activations behind for the next one.
TEST_F(ActivationOffloadLayoutsTest, AbortedStepDoesNotAffectLaterSteps) {
  const RunTask task = task_of(false, DType::F32);
  for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
    for (const i64 pp : {1, 2}) {
      const test::RunResult whole = test::run_layout(task, {{.pp = pp}});
      for (const i64 passes : {1, 5, 11}) {
        test::RunResult result;
        std::mutex mutex;
        run_local_ranks(static_cast<int>(pp), [&](Communicator& world, int rank) {
          test::LayoutRank self(task, {{.pp = pp, .activations_tier = tier}}, world);
          test::SignalAfter signal(rank == 0 ? passes : 1000);
          self.state().set_observer(&signal);
          EXPECT_TRUE(self.step(0).is_aborted);
          self.state().set_observer(nullptr);
          test::Numbers losses;
          for (i64 step = 0; step < task.steps; ++step) losses.push_back(self.step(step).loss);
          const std::lock_guard lock(mutex);
          self.collect(result.weights);
          if (rank == 0) result.losses = losses;
        });
        EXPECT_EQ(result.losses, whole.losses);
        EXPECT_EQ(result.weights, whole.weights);
      }
    }
  }
}

}  // namespace
}  // namespace mcpp
