// Saves beside the training on any layout: what they hold are the bits of the iteration that they are of, although the
// training went on, and the training has the bits of one that saves nothing. Ranks as threads.
#include <gtest/gtest.h>

#include <latch>

#include "checkpoint/directory/folder.h"
#include "checkpoint/save/async_save.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_model.h"

namespace mcpp::async_layouts_test {
namespace {

using test::RunLayout;
using test::RunTask;

const std::vector<RunLayout> kLayouts{
    {.name = "one_rank"},
    {.name = "dp2", .dp = 2},
    {.name = "dp2_zero1", .dp = 2, .zero_stage = 1},
    {.name = "dp2_zero1_waiting", .dp = 2, .zero_stage = 1, .overlaps = false},
    {.name = "dp2_zero2", .dp = 2, .zero_stage = 2},
    {.name = "dp2_zero3", .dp = 2, .zero_stage = 3},
    {.name = "dp4_hsdp_zero3", .dp = 4, .zero_stage = 3, .instances = 2},
    {.name = "tp2_sp_pp2", .tp = 2, .pp = 2, .sequence_parallel = true},
    {.name = "pp2_zb_v", .pp = 2, .schedule = ScheduleKind::ZbV, .virtual_stages = 2},
    {.name = "tp2_pp2_dp2_zero1", .tp = 2, .pp = 2, .dp = 2, .zero_stage = 1},
};

class AsyncLayouts : public testing::Test {
 protected:
  static RunTask task_of(ModelConfig model, DType dtype) {
    model.num_layers = 4;
    model.hidden_size = 16;
    model.num_attention_heads = 4;
    RunTask task = test::learnable_task(model, dtype);
    task.steps = 4;
    return task;
  }

  /// Trains the steps; after the first one it saves twice: at once in one folder, and in another beside the rest, the
  /// copy being held back until the next backward has run. `coverage` of the second. The losses of rank 0.
  test::Numbers train(const RunTask& task, const RunLayout& layout, const Path& folder, Coverage coverage) {
    test::Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      const Log log(rank);
      test::Numbers mine{self.step(0).loss};
      std::vector<NamedShard> shards =
          coverage == Coverage::Whole ? shards_to_save(self.state()) : shards_to_load(self.state());
      const Path own = coverage == Coverage::Whole ? Path() : Path(str(rank));
      ShardList source(shards);
      CheckpointSave waited({.folder = folder / "waited" / own, .coverage = coverage}, {.iteration = 1}, world, log,
                            files_);
      waited.write(source);
      waited.gather_and_finish();

      std::latch backward_is_done(1);
      const SaveObserver hold = [&](SavePoint point) {
        if (point == SavePoint::BeforeFiles) backward_is_done.wait();
      };
      HostStaging staging;
      staging.begin(shards);
      AsyncSave beside({.folder = folder / "beside" / own, .coverage = coverage, .observer = hold}, {.iteration = 1},
                       staging, world, log, files_);
      self.evaluate(task, 0);
      self.backward(1);
      EXPECT_FALSE(beside.is_idle());
      backward_is_done.count_down();
      beside.wait_for_copy();
      self.update(1);
      mine.push_back(self.state().outcome().loss);
      for (i64 step = 2; step < task.steps; ++step) mine.push_back(self.step(step).loss);
      while (!beside.advance()) continue;
      if (rank == 0) losses = mine;
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

  void expect_bits_of_the_iteration(const RunTask& task, Coverage coverage) {
    for (const RunLayout& layout : kLayouts) {
      SCOPED_TRACE(layout.name);
      const Path folder = scratch_ / str(layout.name, "_", static_cast<int>(coverage));
      EXPECT_EQ(train(task, layout, folder, coverage), test::run_layout(task, layout).losses);
      expect_same_files(folder / "waited", folder / "beside");
    }
  }

  const test::ScratchFolder scratch_;
  const FileSystem files_;
};

TEST_F(AsyncLayouts, HaveTheBitsOfTheirIteration) {
  expect_bits_of_the_iteration(task_of(test::tiny_gpt2(), DType::F32), Coverage::Whole);
}

TEST_F(AsyncLayouts, AlsoInBf16WithMasterWeights) {
  expect_bits_of_the_iteration(task_of(test::tiny_llama(), DType::BF16), Coverage::Whole);
}

TEST_F(AsyncLayouts, AlsoOfTheLocalTier) {
  expect_bits_of_the_iteration(task_of(test::tiny_gpt2(), DType::F32), Coverage::Part);
}

}  // namespace
}  // namespace mcpp::async_layouts_test
