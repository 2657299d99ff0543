// Master weights stored as remainders, on any layout: bitwise identical to a run with a master copy, with the same
// tensors in checkpoints, so that each loads the other's. Ranks are threads.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/layouts/state_layouts.h"
#include "tests/support/tiny_model.h"

namespace mcpp::param_remainders_layouts_test {
namespace {

using test::expect_same_bits;
using test::load_and_continue;
using test::named;
using test::Numbers;
using test::run_layout;
using test::RunLayout;
using test::RunTask;
using test::save_and_continue;

const std::vector<RunLayout> kLayouts = [] {
  std::vector<RunLayout> layouts = test::kStateLayouts;
  layouts.insert(layouts.end(),
                 {{"dp2_zero3", {.dp = 2, .zero_stage = 3}},
                  {"dp4_hsdp_zero1", {.dp = 4, .zero_stage = 1, .instances = 2}},
                  {"second_copy", {.dp = 4, .zero_stage = 3, .node_ranks = 2}},
                  {"packed_zero1",
                   {.dp = 2, .zero_stage = 1, .formats = {.quantized_weights = true, .quantized_gradients = true}}},
                  {"packed_zero3", {.dp = 2, .zero_stage = 3, .formats = {.quantized_weights = true}}},
                  {"factors", {.dp = 2, .zero_stage = 1, .formats = {.power_sgd_rank = 2}}}});
  return layouts;
}();

class ParamRemaindersLayoutsTest : public testing::Test {
 protected:
  static RunTask with_master_copy() {
    ModelConfig model = test::tiny_gpt2();
    model.num_layers = 4;
    model.hidden_size = 32;
    model.num_attention_heads = 4;
    model.seq_length = 8;
    RunTask task = test::learnable_task(model, DType::BF16);
    task.steps = 6;
    return task;
  }
  static RunTask with_remainders(RunTask task) {
    task.optimizer.store_param_remainders = true;
    return task;
  }
  RunTask offloaded_to(OffloadTier states, OffloadTier weights, RunTask task) const {
    task.optimizer.offload = states;
    task.optimizer.offload_params = weights;
    task.optimizer.offload_segment_size = 700;  // not aligned to the ends of parameters
    task.optimizer.offload_folder = folder_.path().string();
    return task;
  }
  static void expect_same_tensors(const Path& a, const Path& b) {
    CheckpointReader first(a / checkpoint_name(2)), second(b / checkpoint_name(2));
    ASSERT_EQ(first.manifest().tensors.size(), second.manifest().tensors.size());
    CpuDevice host;
    for (const TensorEntry& tensor : first.manifest().tensors) {
      const Tensor one = first.read_full_tensor(tensor.name, host), other = second.read_full_tensor(tensor.name, host);
      ASSERT_EQ(one.dtype(), other.dtype()) << tensor.name;
      ASSERT_EQ(one.bytes(), other.bytes()) << tensor.name;
      EXPECT_EQ(std::memcmp(one.raw(), other.raw(), static_cast<std::size_t>(one.bytes())), 0) << tensor.name;
    }
  }

  const test::DiskFolder folder_;
  const test::ScratchFolder scratch_;
};

TEST_F(ParamRemaindersLayoutsTest, IsBitwiseIdenticalToMasterCopy) {
  for (const RunLayout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    expect_same_bits(run_layout(with_remainders(with_master_copy()), layout), run_layout(with_master_copy(), layout));
  }
}

TEST_F(ParamRemaindersLayoutsTest, IsBitwiseIdenticalToMasterCopyWithExperts) {
  RunTask task = with_master_copy();
  task.model.moe.num_experts = 4;
  task.model.moe.router_topk = 2;
  for (const RunLayout& layout :
       {RunLayout{"ep2", {.dp = 2, .ep = 2}}, RunLayout{"ep2_zero1", {.dp = 4, .ep = 2, .zero_stage = 1}},
        RunLayout{"ep2_zero3", {.dp = 4, .ep = 2, .zero_stage = 3}}}) {
    SCOPED_TRACE(layout.name);
    expect_same_bits(run_layout(with_remainders(task), layout), run_layout(task, layout));
  }
}

TEST_F(ParamRemaindersLayoutsTest, IsBitwiseIdenticalToMasterCopyWithMuonAndLowPrecisionMoments) {
  for (const RunLayout& layout : named(kLayouts, {"one_rank", "dp2_zero2", "tp2_pp2_dp2_zero1"})) {
    SCOPED_TRACE(layout.name);
    RunTask muon = with_master_copy();
    muon.optimizer.optimizer = OptimizerKind::Muon;
    expect_same_bits(run_layout(with_remainders(muon), layout), run_layout(muon, layout));
    RunTask small = with_master_copy();
    small.optimizer.exp_avg_dtype = StateDType::Bf16;
    small.optimizer.exp_avg_sq_dtype = StateDType::Uint8;
    expect_same_bits(run_layout(with_remainders(small), layout), run_layout(small, layout));
  }
}

TEST_F(ParamRemaindersLayoutsTest, IsBitwiseIdenticalToMasterCopyOnAnyTier) {
  constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};
  for (const RunLayout& layout : named(kLayouts, {"dp2_zero1", "dp4_hsdp_zero3", "cp2_dp2_zero3"})) {
    const test::RunResult on_device = run_layout(with_master_copy(), layout);
    for (const OffloadTier states : kTiers) {
      for (const OffloadTier weights : kTiers) {
        if (layout.zero_stage < 3 && weights != OffloadTier::Device) continue;
        SCOPED_TRACE(str(layout.name, " ", enum_name(states), " ", enum_name(weights)));
        expect_same_bits(run_layout(offloaded_to(states, weights, with_remainders(with_master_copy())), layout),
                         on_device);
      }
    }
  }
}

/// A checkpoint does not depend on the storage of its master weights.
TEST_F(ParamRemaindersLayoutsTest, SavesSameTensorsAsMasterCopy) {
  for (const RunLayout& layout : named(kLayouts, {"one_rank", "dp2_zero3", "dp4_hsdp_zero3", "tp2_pp2_dp2_zero1"})) {
    SCOPED_TRACE(layout.name);
    const bool offloads_weights = layout.zero_stage == 3;
    const RunTask remainders_task =
        offloaded_to(OffloadTier::File, offloads_weights ? OffloadTier::File : OffloadTier::Device,
                     with_remainders(with_master_copy()));
    const Path a = scratch_ / str(layout.name, "_copied"), b = scratch_ / str(layout.name, "_joined");
    const Numbers losses = save_and_continue(with_master_copy(), layout, a);
    EXPECT_EQ(save_and_continue(remainders_task, layout, b), losses);
    expect_same_tensors(a, b);
    EXPECT_EQ(load_and_continue(remainders_task, layout, a), losses);
    EXPECT_EQ(load_and_continue(with_remainders(with_master_copy()), layout, a), losses);
    EXPECT_EQ(load_and_continue(with_master_copy(), layout, b), losses);
  }
}

/// Any layout loads them and continues identically with and without a master copy.
TEST_F(ParamRemaindersLayoutsTest, LoadsCheckpointsOfOtherLayouts) {
  for (const RunLayout& from : named(kLayouts, {"dp2_zero3", "tp2_sp_pp2"})) {
    const Path folder = scratch_ / str(from.name, "_elsewhere");
    save_and_continue(with_remainders(with_master_copy()), from, folder);
    for (const RunLayout& to : named(kLayouts, {"one_rank", "dp4_hsdp_zero3", "tp2_pp2_dp2_zero1"})) {
      SCOPED_TRACE(str(from.name, " ", to.name));
      EXPECT_EQ(load_and_continue(with_remainders(with_master_copy()), to, folder),
                load_and_continue(with_master_copy(), to, folder));
    }
  }
}

}  // namespace
}  // namespace mcpp::param_remainders_layouts_test
