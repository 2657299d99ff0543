// Optimizer state in host memory and on a disk, on any layout: bitwise identical to a run that keeps it on the
// device, and saved from and loaded into any other tier and layout, synchronously or asynchronously. Ranks are
// threads.
#include <gtest/gtest.h>

#include <latch>

#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/layouts/state_layouts.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::kStateLayouts;
using test::load_and_continue;
using test::named;
using test::Numbers;
using test::RunLayout;
using test::RunTask;
using test::save_and_continue;

class OffloadLayoutsTest : public testing::Test {
 protected:
  static RunTask task_of(DType dtype, OptimizerKind kind = OptimizerKind::Adam) {
    ModelConfig model = test::tiny_gpt2();
    model.num_layers = 4;
    model.hidden_size = 16;
    model.num_attention_heads = 4;
    model.seq_length = 8;
    RunTask task = test::learnable_task(model, dtype);
    task.optimizer.optimizer = kind;
    return task;
  }
  RunTask offloaded_to(OffloadTier tier, RunTask task, OffloadTier weights = OffloadTier::Device) const {
    task.optimizer.offload = tier;
    task.optimizer.offload_params = weights;
    task.optimizer.offload_segment_size = 700;  // not aligned to the ends of parameters
    task.optimizer.offload_folder = folder_.path().string();
    return task;
  }

  /// Starts an asynchronous save after the first step; its files are finished after two more steps. Returns the losses.
  Numbers save_async(const RunTask& task, const RunLayout& layout, const Path& folder) const {
    Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      Numbers rank_losses{self.step(0).loss};
      const std::vector<NamedShard> shards = shards_to_save(self.state());
      HostCopies sync_source(shards);
      save_checkpoint(folder / "waited", {.iteration = 1}, sync_source, world, Log(rank));
      std::latch steps_are_done(1);
      const SaveObserver hold = [&](SavePoint point) {
        if (point == SavePoint::AfterFiles) steps_are_done.wait();
      };
      HostStaging staging;
      staging.begin(shards);
      const Log log(rank);
      AsyncSave async_save({.folder = folder / "overlapped", .observer = hold}, {.iteration = 1}, staging, world, log,
                           files_);
      self.backward(1);
      async_save.wait_for_copy();
      self.update(1);
      rank_losses.push_back(self.state().outcome().loss);
      for (i64 step = 2; step < 4; ++step) rank_losses.push_back(self.step(step).loss);
      steps_are_done.count_down();
      while (!async_save.advance()) continue;
      staging.end();
      rank_losses.push_back(self.step(4).loss);
      if (rank == 0) losses = rank_losses;
    });
    return losses;
  }

  /// `on_device` is the same task without offload.
  void expect_async_save_matches(const RunTask& task, const RunTask& on_device, const RunLayout& layout,
                                 const Path& folder) const {
    EXPECT_EQ(save_async(task, layout, folder), test::run_layout(on_device, layout).losses);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "waited")) {
      if (entry.path().extension() != ".h5") continue;
      const Path other = folder / "overlapped" / entry.path().lexically_relative(folder / "waited");
      EXPECT_TRUE(read_text_file(entry.path()) == read_text_file(other)) << entry.path();
    }
  }

  const test::DiskFolder folder_;
  const test::ScratchFolder scratch_;
  const FileSystem files_;
};

TEST_F(OffloadLayoutsTest, IsBitwiseIdenticalToNoOffload) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : kStateLayouts) {
      const RunTask task = task_of(dtype);
      const test::RunResult on_device = test::run_layout(task, layout);
      for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
        SCOPED_TRACE(str(layout.name, " ", name_of(dtype), " ", enum_name(tier)));
        test::expect_same_bits(test::run_layout(offloaded_to(tier, task), layout), on_device);
      }
    }
  }
}

TEST_F(OffloadLayoutsTest, IsBitwiseIdenticalToNoOffloadWithMuon) {
  const RunTask task = task_of(DType::BF16, OptimizerKind::Muon);
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp2_zero2", "tp2_pp2_dp2_zero1"})) {
    SCOPED_TRACE(layout.name);
    test::expect_same_bits(test::run_layout(offloaded_to(OffloadTier::File, task), layout),
                           test::run_layout(task, layout));
  }
}

/// Blocks of quantized moments are inside every shard, so, like fp32 moments, they depend only on the layout's order of
/// summation.
TEST_F(OffloadLayoutsTest, LowPrecisionMomentsAreIndependentOfLayout) {
  for (const StateDType type : {StateDType::Bf16, StateDType::Uint8}) {
    RunTask task = task_of(DType::BF16);
    task.optimizer.exp_avg_dtype = task.optimizer.exp_avg_sq_dtype = type;
    const test::RunResult one = test::run_layout(task, {}), dp2 = test::run_layout(task, {{.dp = 2}});
    SCOPED_TRACE(enum_name(type));
    test::expect_same_bits(test::run_layout(task, {{.pp = 4}}), one);
    test::expect_same_bits(test::run_layout(offloaded_to(OffloadTier::File, task), {{.pp = 2}}), one);
    test::expect_same_bits(test::run_layout(task, {{.dp = 2, .zero_stage = 1}}), dp2);
    test::expect_same_bits(test::run_layout(task, {{.dp = 2, .zero_stage = 1, .bucket_size = 0}}), dp2);
    test::expect_same_bits(test::run_layout(offloaded_to(OffloadTier::Host, task), {{.dp = 2, .zero_stage = 1}}), dp2);
    const test::RunResult full = test::run_layout(task_of(DType::BF16), {});
    EXPECT_LE(test::relative_distance(one.losses, full.losses), 0.01);
    EXPECT_NE(one.losses, full.losses);
  }
}

TEST_F(OffloadLayoutsTest, Bf16GradientsAreCloseToFp32) {
  RunTask task = task_of(DType::BF16);
  const test::RunResult full = test::run_layout(task, {{.dp = 2, .zero_stage = 2}});
  task.optimizer.main_grads_dtype = GradDType::Bf16;
  const test::RunResult low_precision = test::run_layout(task, {{.dp = 2, .zero_stage = 2}});
  EXPECT_LE(test::relative_distance(low_precision.losses, full.losses), 0.005);
  EXPECT_NE(low_precision.grad_norms, full.grad_norms);
  test::expect_same_bits(test::run_layout(task, {{.dp = 2, .zero_stage = 3}}), low_precision);
  test::expect_same_bits(
      test::run_layout(task, {{.dp = 2, .zero_stage = 2, .overlap_grad_reduce = false, .overlap_param_gather = false}}),
      low_precision);
  test::expect_same_bits(test::run_layout(offloaded_to(OffloadTier::File, task), {{.dp = 2, .zero_stage = 2}}),
                         low_precision);
}

/// Only ZeRO stage 3 has a shard of the weights that can be offloaded.
const std::vector<RunLayout> kStage3{
    {"one_rank", {.zero_stage = 3}},
    {"dp2", {.dp = 2, .zero_stage = 3}},
    {"dp2_no_overlap", {.dp = 2, .zero_stage = 3, .overlap_grad_reduce = false, .overlap_param_gather = false}},
    {"dp4_hsdp", {.dp = 4, .zero_stage = 3, .instances = 2}},
    {"cp2_dp2", {.cp = 2, .dp = 2, .zero_stage = 3}},
    {"tp2_sp_pp2_dp2", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3}},
    {"pp2_interleaved_dp2", {.pp = 2, .dp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .zero_stage = 3}},
};

TEST_F(OffloadLayoutsTest, OffloadedWeightsAreBitwiseIdentical) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : kStage3) {
      const RunTask task = task_of(dtype);
      const test::RunResult on_device = test::run_layout(task, layout);
      for (const OffloadTier weights : {OffloadTier::Host, OffloadTier::File}) {
        for (const OffloadTier states : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
          SCOPED_TRACE(str(layout.name, " ", name_of(dtype), " ", enum_name(weights), " ", enum_name(states)));
          test::expect_same_bits(test::run_layout(offloaded_to(states, task, weights), layout), on_device);
        }
      }
    }
  }
}

TEST_F(OffloadLayoutsTest, OffloadedWeightsAreBitwiseIdenticalWithMuon) {
  const RunTask task = task_of(DType::F32, OptimizerKind::Muon);
  for (const OffloadTier weights : {OffloadTier::Host, OffloadTier::File}) {
    test::expect_same_bits(test::run_layout(offloaded_to(OffloadTier::Device, task, weights), kStage3[1]),
                           test::run_layout(task, kStage3[1]));
  }
}

TEST_F(OffloadLayoutsTest, ContinuesWithWeightsOnAnyTier) {
  constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const OffloadTier from : kTiers) {
      const RunTask task = task_of(dtype);
      const Path folder = scratch_ / str("weights_", name_of(dtype), "_", enum_name(from));
      const Numbers losses = save_and_continue(offloaded_to(OffloadTier::Device, task, from), kStage3[1], folder);
      for (const OffloadTier to : kTiers) {
        SCOPED_TRACE(str(name_of(dtype), " ", enum_name(from), " ", enum_name(to)));
        EXPECT_EQ(load_and_continue(offloaded_to(to, task, to), kStage3[1], folder), losses);
      }
      const Numbers one_rank = load_and_continue(task, named(kStateLayouts, {"one_rank"}).front(), folder);
      EXPECT_LE(test::relative_distance(one_rank, losses), dtype == DType::F32 ? 1e-5 : 5e-3);
    }
  }
}

TEST_F(OffloadLayoutsTest, AsyncSavesOffloadedWeights) {
  for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
    for (const RunLayout& layout : {kStage3[1], kStage3[5]}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask on_device = task_of(DType::F32);
      on_device.steps = 5;
      RunTask task = offloaded_to(tier, on_device, tier);
      task.async_save = true;
      expect_async_save_matches(task, on_device, layout, scratch_ / str("weights_", layout.name, "_", enum_name(tier)));
    }
  }
}

/// A run on the same layout continues bitwise identically, wherever the state was and is.
TEST_F(OffloadLayoutsTest, ContinuesWithStateOnAnyTier) {
  constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp2_zero1", "tp2_pp2_dp2_zero1"})) {
    for (const OffloadTier from : kTiers) {
      const RunTask task = task_of(DType::BF16);
      const Path folder = scratch_ / str(layout.name, "_", enum_name(from));
      const Numbers losses = save_and_continue(offloaded_to(from, task), layout, folder);
      for (const OffloadTier to : kTiers) {
        SCOPED_TRACE(str(layout.name, " ", enum_name(from), " ", enum_name(to)));
        EXPECT_EQ(load_and_continue(offloaded_to(to, task), layout, folder), losses);
      }
    }
  }
}

TEST_F(OffloadLayoutsTest, ContinuesOnAnyLayout) {
  const RunTask task = task_of(DType::F32), on_file = offloaded_to(OffloadTier::File, task);
  for (const RunLayout& from : named(kStateLayouts, {"dp2_zero2", "tp2_sp_pp2"})) {
    const Path folder = scratch_ / from.name;
    const Numbers losses = save_and_continue(on_file, from, folder);
    for (const RunLayout& to : named(kStateLayouts, {"one_rank", "tp2_pp2_dp2_zero1", "cp2_dp2_zero3"})) {
      SCOPED_TRACE(str(from.name, " ", to.name));
      const Numbers continued = load_and_continue(on_file, to, folder);
      EXPECT_LE(test::relative_distance(continued, losses), 1e-5);
      EXPECT_EQ(continued, load_and_continue(task, to, folder)) << "the result depends on the place";
    }
  }
}

TEST_F(OffloadLayoutsTest, AsyncSavesOffloadedState) {
  for (const RunLayout& layout : kStateLayouts) {
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask on_device = task_of(DType::BF16);
      on_device.steps = 5;
      RunTask task = offloaded_to(tier, on_device);
      task.async_save = true;
      expect_async_save_matches(task, on_device, layout, scratch_ / str(layout.name, "_", enum_name(tier)));
    }
  }
}

/// Master weights consist of two parts, each in its own tier.
TEST_F(OffloadLayoutsTest, AsyncSavesParamRemainders) {
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp4_hsdp_zero3", "tp2_pp2_dp2_zero1"})) {
    for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask on_device = task_of(DType::BF16);
      on_device.steps = 5;
      RunTask task = offloaded_to(tier, on_device, layout.zero_stage == 3 ? tier : OffloadTier::Device);
      task.async_save = task.optimizer.store_param_remainders = true;
      expect_async_save_matches(task, on_device, layout,
                                scratch_ / str("remainders_", layout.name, "_", enum_name(tier)));
    }
  }
}

}  // namespace
}  // namespace mcpp
