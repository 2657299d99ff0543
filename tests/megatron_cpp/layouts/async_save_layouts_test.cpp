// Asynchronous saves on any layout contain the state of their own iteration, although training continues, and do not
// change training. Ranks are threads.
#include <gtest/gtest.h>

#include <latch>

#include "checkpoint/directory/folder.h"
#include "checkpoint/save/async_save.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_model.h"

namespace mcpp::async_save_layouts_test {
namespace {

using test::RunLayout;
using test::RunTask;

const std::vector<RunLayout> kLayouts{
    {"one_rank", {}},
    {"dp2", {.dp = 2}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero1_waiting", {.dp = 2, .zero_stage = 1, .overlap_grad_reduce = false, .overlap_param_gather = false}},
    {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
    {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
    {"dp4_hsdp_zero3", {.dp = 4, .zero_stage = 3, .instances = 2}},
    {"tp2_sp_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
};

class AsyncSaveLayoutsTest : public testing::Test {
 protected:
  static RunTask task_of(ModelConfig model, DType dtype) {
    model.num_layers = 4;
    model.hidden_size = 16;
    model.num_attention_heads = 4;
    RunTask task = test::learnable_task(model, dtype);
    task.steps = 4;
    return task;
  }

  /// Trains and saves twice after the first step: synchronously in one folder, and asynchronously, with `coverage`, in
  /// a second one, where the copy starts only after the next backward pass. Returns the losses of rank 0.
  test::Numbers train(const RunTask& task, const RunLayout& layout, const Path& folder, Coverage coverage) {
    test::Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      const Log log(rank);
      test::Numbers rank_losses{self.step(0).loss};
      std::vector<NamedShard> shards =
          coverage == Coverage::Full ? shards_to_save(self.state()) : shards_to_load(self.state());
      const Path part_folder = coverage == Coverage::Full ? Path() : Path(str(rank));
      HostCopies source(shards);
      CheckpointSave sync_save({.folder = folder / "waited" / part_folder, .coverage = coverage}, {.iteration = 1},
                               world, log, files_);
      sync_save.write(source);
      sync_save.gather_and_finish();

      std::latch backward_is_done(1);
      const SaveObserver hold = [&](SavePoint point) {
        if (point == SavePoint::BeforeFiles) backward_is_done.wait();
      };
      HostStaging staging;
      staging.begin(shards);
      AsyncSave async_save({.folder = folder / "overlapped" / part_folder, .coverage = coverage, .observer = hold},
                           {.iteration = 1}, staging, world, log, files_);
      self.evaluate(task, 0);
      self.backward(1);
      EXPECT_FALSE(async_save.is_idle());
      backward_is_done.count_down();
      async_save.wait_for_copy();
      self.update(1);
      rank_losses.push_back(self.state().outcome().loss);
      for (i64 step = 2; step < task.steps; ++step) rank_losses.push_back(self.step(step).loss);
      while (!async_save.advance()) continue;
      if (rank == 0) losses = rank_losses;
    });
    return losses;
  }

  static void expect_same_files(const Path& a, const Path& b) {
    i64 files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(a)) {
      if (entry.path().extension() != ".h5") continue;
      EXPECT_TRUE(read_text_file(entry.path()) == read_text_file(b / entry.path().lexically_relative(a)))
          << entry.path();
      ++files;
    }
    EXPECT_GT(files, 0);
  }

  void expect_matches_sync_save(const RunTask& task, Coverage coverage) {
    for (const RunLayout& layout : kLayouts) {
      SCOPED_TRACE(layout.name);
      const Path folder = scratch_ / str(layout.name, "_", static_cast<int>(coverage));
      EXPECT_EQ(train(task, layout, folder, coverage), test::run_layout(task, layout).losses);
      expect_same_files(folder / "waited", folder / "overlapped");
    }
  }

  const test::ScratchFolder scratch_;
  const FileSystem files_;
};

TEST_F(AsyncSaveLayoutsTest, SavesStateOfItsIteration) {
  expect_matches_sync_save(task_of(test::tiny_gpt2(), DType::F32), Coverage::Full);
}

TEST_F(AsyncSaveLayoutsTest, SavesStateOfItsIterationInBf16WithMasterWeights) {
  expect_matches_sync_save(task_of(test::tiny_llama(), DType::BF16), Coverage::Full);
}

TEST_F(AsyncSaveLayoutsTest, SavesStateOfItsIterationToLocalTier) {
  expect_matches_sync_save(task_of(test::tiny_gpt2(), DType::F32), Coverage::Part);
}

}  // namespace
}  // namespace mcpp::async_save_layouts_test
