// What a save beside the training takes of the process's memory, wherever states are and in whatever form, against the
// plan that --dry_run prints.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "checkpoint/save/host_staging.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/disk_folder.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

/// Bytes of this process that are in memory, without what it has given back.
double resident() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  double all = 0, pages = 0;
  file >> all >> pages;
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

class MemoryOfSaves : public testing::Test {
 protected:
  /// Tensors that outweigh what it takes to know of them.
  RunTask task() const {
    ModelConfig model = test::tiny_llama();
    model.num_layers = 2;
    model.hidden_size = 512;
    model.ffn_hidden_size = 1536;
    model.vocab_size = 8192;
    RunTask task = test::learnable_task(model, DType::BF16);
    task.async_save = true;
    task.optimizer.offload_folder = folder_.path().string();
    return task;
  }
  RunTask with_small_moments() const {
    RunTask small = task();
    small.optimizer.exp_avg_dtype = StateDType::Bf16;
    small.optimizer.exp_avg_sq_dtype = StateDType::Uint8;
    return small;
  }
  RunTask kept_in(OffloadTier states, OffloadTier weights = OffloadTier::Device) const {
    RunTask away = task();
    away.optimizer.offload = states;
    away.optimizer.offload_params = weights;
    return away;
  }
  static RunTask joined(RunTask task) {
    task.optimizer.store_param_remainders = true;
    return task;
  }
  /// From the beginning of a save to the last tensor that it writes, as `bytes(staging)` counts them.
  template <class Bytes>
  static void expect_planned(const RunTask& task, const Bytes& bytes) {
    const RunLayout layout{.zero_stage = task.optimizer.offload_params == OffloadTier::Device ? 0 : 3};
    Config config = config_of(task, layout);
    config.checkpoint.save_interval = 10;
    const double planned = estimate_memory_by_stage(config, 1)[0].save_copy;
    run_local_ranks(1, [&](Communicator& world, int) {
      LayoutRank self(task, layout, world);
      self.step(0);
      const std::vector<NamedShard> shards = shards_to_save(self.state());
      HostStaging staging;
      const double before = bytes(staging);
      staging.begin(shards);
      staging.copy_rest();
      double most = bytes(staging);
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const Tensor written = staging.data(i);
        most = std::max(most, bytes(staging));
      }
      EXPECT_NEAR(planned / (most - before), 1, 0.06) << "planned " << planned << ", measured " << most - before;
    });
  }

  /// All of the process's: copies in a form of their own know nothing of one another.
  static void expect_planned(const RunTask& task) {
    expect_planned(task, [](const HostStaging&) { return resident(); });
  }
  static void expect_accounted(const RunTask& task) {
    expect_planned(task, [](const HostStaging& staging) { return static_cast<double>(staging.bytes()); });
  }

  const test::DiskFolder folder_;
};

// What another run of this process had, and gave back, would be had again: each of these has a test of its own.

TEST_F(MemoryOfSaves, IsPlannedOfRemainders) {
  expect_planned(joined(task()));
}

TEST_F(MemoryOfSaves, IsPlannedOfRemaindersOnTheHost) {
  expect_planned(joined(kept_in(OffloadTier::Host)));
}

TEST_F(MemoryOfSaves, IsPlannedOfSmallMoments) {
  expect_planned(with_small_moments());
}

TEST_F(MemoryOfSaves, IsPlannedOfAllThatIsSmaller) {
  expect_planned(joined(with_small_moments()));
}

TEST_F(MemoryOfSaves, IsPlannedOfWhatFilesHoldWhereverItIs) {
  expect_accounted(task());
  expect_accounted(kept_in(OffloadTier::Host));
  expect_accounted(kept_in(OffloadTier::File));
  expect_accounted(kept_in(OffloadTier::Device, OffloadTier::File));
}

}  // namespace
}  // namespace mcpp
