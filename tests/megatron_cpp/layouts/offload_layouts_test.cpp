// Optimizer state in host memory and on a disk, on any layout: the bits of a training that keeps it with the weights,
// saved from and loaded into any other place and layout, at once or beside the training. Ranks as threads.
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
using test::load_and_go_on;
using test::named;
using test::Numbers;
using test::RunLayout;
using test::RunTask;
using test::save_and_go_on;

class OffloadLayouts : public testing::Test {
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
  RunTask kept_in(OffloadTier tier, RunTask task, OffloadTier weights = OffloadTier::Device) const {
    task.optimizer.offload = tier;
    task.optimizer.offload_params = weights;
    task.optimizer.offload_segment_size = 700;  // not at the ends of parameters
    task.optimizer.offload_folder = folder_.path().string();
    return task;
  }

  /// Saves beside the training after the first step; the bytes are written when two more steps were made. The losses.
  Numbers save_beside(const RunTask& task, const RunLayout& layout, const Path& folder) const {
    Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      Numbers mine{self.step(0).loss};
      const std::vector<NamedShard> shards = shards_to_save(self.state());
      HostCopies at_once(shards);
      save_checkpoint(folder / "waited", {.iteration = 1}, at_once, world, Log(rank));
      std::latch steps_are_done(1);
      const SaveObserver hold = [&](SavePoint point) {
        if (point == SavePoint::AfterFiles) steps_are_done.wait();
      };
      HostStaging staging;
      staging.begin(shards);
      const Log log(rank);
      AsyncSave beside({.folder = folder / "beside", .observer = hold}, {.iteration = 1}, staging, world, log, files_);
      self.backward(1);
      beside.wait_for_copy();
      self.update(1);
      mine.push_back(self.state().outcome().loss);
      for (i64 step = 2; step < 4; ++step) mine.push_back(self.step(step).loss);
      steps_are_done.count_down();
      while (!beside.advance()) continue;
      staging.end();
      mine.push_back(self.step(4).loss);
      if (rank == 0) losses = mine;
    });
    return losses;
  }

  /// `near` is the same task with everything on the device.
  void expect_saved_beside(const RunTask& task, const RunTask& near, const RunLayout& layout,
                           const Path& folder) const {
    EXPECT_EQ(save_beside(task, layout, folder), test::run_layout(near, layout).losses);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "waited")) {
      if (entry.path().extension() != ".h5") continue;
      const Path other = folder / "beside" / entry.path().lexically_relative(folder / "waited");
      EXPECT_TRUE(read_text_file(entry.path()) == read_text_file(other)) << entry.path();
    }
  }

  const test::DiskFolder folder_;
  const test::ScratchFolder scratch_;
  const FileSystem files_;
};

TEST_F(OffloadLayouts, TrainTheSameBits) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : kStateLayouts) {
      const RunTask task = task_of(dtype);
      const test::RunResult near = test::run_layout(task, layout);
      for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
        SCOPED_TRACE(str(layout.name, " ", name_of(dtype), " ", enum_name(tier)));
        test::expect_same_bits(test::run_layout(kept_in(tier, task), layout), near);
      }
    }
  }
}

TEST_F(OffloadLayouts, TrainTheSameBitsWithMuon) {
  const RunTask task = task_of(DType::BF16, OptimizerKind::Muon);
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp2_zero2", "tp2_pp2_dp2_zero1"})) {
    SCOPED_TRACE(layout.name);
    test::expect_same_bits(test::run_layout(kept_in(OffloadTier::File, task), layout), test::run_layout(task, layout));
  }
}

/// Blocks of quantized moments lie inside every cut: as full ones, they depend on no sum's order but the layout's.
TEST_F(OffloadLayouts, SmallerMomentsDoNotDependOnTheLayout) {
  for (const StateDType type : {StateDType::Bf16, StateDType::Uint8}) {
    RunTask task = task_of(DType::BF16);
    task.optimizer.exp_avg_dtype = task.optimizer.exp_avg_sq_dtype = type;
    const test::RunResult one = test::run_layout(task, {}), dp2 = test::run_layout(task, {.dp = 2});
    SCOPED_TRACE(enum_name(type));
    test::expect_same_bits(test::run_layout(task, {.pp = 4}), one);
    test::expect_same_bits(test::run_layout(kept_in(OffloadTier::File, task), {.pp = 2}), one);
    test::expect_same_bits(test::run_layout(task, {.dp = 2, .zero_stage = 1}), dp2);
    test::expect_same_bits(test::run_layout(task, {.dp = 2, .zero_stage = 1, .bucket_elements = 0}), dp2);
    test::expect_same_bits(test::run_layout(kept_in(OffloadTier::Host, task), {.dp = 2, .zero_stage = 1}), dp2);
    const test::RunResult full = test::run_layout(task_of(DType::BF16), {});
    EXPECT_LE(test::relative_distance(one.losses, full.losses), 0.01);
    EXPECT_NE(one.losses, full.losses);
  }
}

TEST_F(OffloadLayouts, GradientsInBf16AreNearThoseInFull) {
  RunTask task = task_of(DType::BF16);
  const test::RunResult full = test::run_layout(task, {.dp = 2, .zero_stage = 2});
  task.optimizer.main_grads_dtype = GradDType::Bf16;
  const test::RunResult narrow = test::run_layout(task, {.dp = 2, .zero_stage = 2});
  EXPECT_LE(test::relative_distance(narrow.losses, full.losses), 0.005);
  EXPECT_NE(narrow.grad_norms, full.grad_norms);
  test::expect_same_bits(test::run_layout(task, {.dp = 2, .zero_stage = 3}), narrow);
  test::expect_same_bits(test::run_layout(task, {.dp = 2, .zero_stage = 2, .overlaps = false}), narrow);
  test::expect_same_bits(test::run_layout(kept_in(OffloadTier::File, task), {.dp = 2, .zero_stage = 2}), narrow);
}

/// Stage 3 alone has a part of the weights to put away, whatever is done with the rest.
const std::vector<RunLayout> kStage3{
    {.name = "one_rank", .zero_stage = 3},
    {.name = "dp2", .dp = 2, .zero_stage = 3},
    {.name = "dp2_no_overlap", .dp = 2, .zero_stage = 3, .overlaps = false},
    {.name = "dp4_hsdp", .dp = 4, .zero_stage = 3, .instances = 2},
    {.name = "cp2_dp2", .dp = 2, .cp = 2, .zero_stage = 3},
    {.name = "tp2_sp_pp2_dp2", .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3},
    {.name = "pp2_interleaved_dp2",
     .pp = 2,
     .dp = 2,
     .schedule = ScheduleKind::Interleaved,
     .virtual_stages = 2,
     .zero_stage = 3},
};

TEST_F(OffloadLayouts, TrainTheSameBitsFromWeightsElsewhere) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const RunLayout& layout : kStage3) {
      const RunTask task = task_of(dtype);
      const test::RunResult near = test::run_layout(task, layout);
      for (const OffloadTier weights : {OffloadTier::Host, OffloadTier::File}) {
        for (const OffloadTier states : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
          SCOPED_TRACE(str(layout.name, " ", name_of(dtype), " ", enum_name(weights), " ", enum_name(states)));
          test::expect_same_bits(test::run_layout(kept_in(states, task, weights), layout), near);
        }
      }
    }
  }
}

TEST_F(OffloadLayouts, TrainTheSameBitsFromWeightsElsewhereWithMuon) {
  const RunTask task = task_of(DType::F32, OptimizerKind::Muon);
  for (const OffloadTier weights : {OffloadTier::Host, OffloadTier::File}) {
    test::expect_same_bits(test::run_layout(kept_in(OffloadTier::Device, task, weights), kStage3[1]),
                           test::run_layout(task, kStage3[1]));
  }
}

TEST_F(OffloadLayouts, GoOnFromWeightsAnywhere) {
  constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const OffloadTier from : kTiers) {
      const RunTask task = task_of(dtype);
      const Path folder = scratch_ / str("weights_", name_of(dtype), "_", enum_name(from));
      const Numbers losses = save_and_go_on(kept_in(OffloadTier::Device, task, from), kStage3[1], folder);
      for (const OffloadTier to : kTiers) {
        SCOPED_TRACE(str(name_of(dtype), " ", enum_name(from), " ", enum_name(to)));
        EXPECT_EQ(load_and_go_on(kept_in(to, task, to), kStage3[1], folder), losses);
      }
      const Numbers one_rank = load_and_go_on(task, named(kStateLayouts, {"one_rank"}).front(), folder);
      EXPECT_LE(test::relative_distance(one_rank, losses), dtype == DType::F32 ? 1e-5 : 5e-3);
    }
  }
}

TEST_F(OffloadLayouts, SaveWeightsElsewhereBesideTheTraining) {
  for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
    for (const RunLayout& layout : {kStage3[1], kStage3[5]}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask near = task_of(DType::F32);
      near.steps = 5;
      RunTask task = kept_in(tier, near, tier);
      task.async_save = true;
      expect_saved_beside(task, near, layout, scratch_ / str("weights_", layout.name, "_", enum_name(tier)));
    }
  }
}

/// The same layout goes on with the same bits wherever the state was and is.
TEST_F(OffloadLayouts, GoOnFromAnyPlaceInAnyOther) {
  constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp2_zero1", "tp2_pp2_dp2_zero1"})) {
    for (const OffloadTier from : kTiers) {
      const RunTask task = task_of(DType::BF16);
      const Path folder = scratch_ / str(layout.name, "_", enum_name(from));
      const Numbers losses = save_and_go_on(kept_in(from, task), layout, folder);
      for (const OffloadTier to : kTiers) {
        SCOPED_TRACE(str(layout.name, " ", enum_name(from), " ", enum_name(to)));
        EXPECT_EQ(load_and_go_on(kept_in(to, task), layout, folder), losses);
      }
    }
  }
}

TEST_F(OffloadLayouts, GoOnFromAnyLayoutOnAnyOther) {
  const RunTask task = task_of(DType::F32), on_file = kept_in(OffloadTier::File, task);
  for (const RunLayout& from : named(kStateLayouts, {"dp2_zero2", "tp2_sp_pp2"})) {
    const Path folder = scratch_ / from.name;
    const Numbers losses = save_and_go_on(on_file, from, folder);
    for (const RunLayout& to : named(kStateLayouts, {"one_rank", "tp2_pp2_dp2_zero1", "cp2_dp2_zero3"})) {
      SCOPED_TRACE(str(from.name, " ", to.name));
      const Numbers again = load_and_go_on(on_file, to, folder);
      EXPECT_LE(test::relative_distance(again, losses), 1e-5);
      EXPECT_EQ(again, load_and_go_on(task, to, folder)) << "the place matters";
    }
  }
}

TEST_F(OffloadLayouts, SaveBesideTheTraining) {
  for (const RunLayout& layout : kStateLayouts) {
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask near = task_of(DType::BF16);
      near.steps = 5;
      RunTask task = kept_in(tier, near);
      task.async_save = true;
      expect_saved_beside(task, near, layout, scratch_ / str(layout.name, "_", enum_name(tier)));
    }
  }
}

/// Of the master weights two parts, each where it is.
TEST_F(OffloadLayouts, SaveRemaindersBesideTheTraining) {
  for (const RunLayout& layout : named(kStateLayouts, {"one_rank", "dp4_hsdp_zero3", "tp2_pp2_dp2_zero1"})) {
    for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(str(layout.name, " ", enum_name(tier)));
      RunTask near = task_of(DType::BF16);
      near.steps = 5;
      RunTask task = kept_in(tier, near, layout.zero_stage == 3 ? tier : OffloadTier::Device);
      task.async_save = task.optimizer.store_param_remainders = true;
      expect_saved_beside(task, near, layout, scratch_ / str("remainders_", layout.name, "_", enum_name(tier)));
    }
  }
}

}  // namespace
}  // namespace mcpp
