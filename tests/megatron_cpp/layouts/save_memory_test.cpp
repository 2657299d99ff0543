// Process memory of an asynchronous save, for any tier and format of the states, compared with the estimate that
// --dry_run prints.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "checkpoint/save/async_save.h"
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

/// Returns the resident bytes of this process, without freed memory.
double resident_bytes() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  double all = 0, pages = 0;
  file >> all >> pages;
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

class SaveMemoryTest : public testing::Test {
 protected:
  /// Tensors that outweigh their metadata.
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
  RunTask offloaded_to(OffloadTier states, OffloadTier weights = OffloadTier::Device) const {
    RunTask offloaded = task();
    offloaded.optimizer.offload = states;
    offloaded.optimizer.offload_params = weights;
    return offloaded;
  }
  static RunTask with_remainders(RunTask task) {
    task.optimizer.store_param_remainders = true;
    return task;
  }
  /// Measures from the start of a save to its last tensor, with bytes(staging).
  template <class Bytes>
  static void expect_planned(const RunTask& task, const Bytes& bytes) {
    const RunLayout layout{{.zero_stage = task.optimizer.offload_params == OffloadTier::Device ? 0 : 3}};
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
      double peak = bytes(staging);
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const Tensor written = staging.data(i);
        peak = std::max(peak, bytes(staging));
      }
      EXPECT_NEAR(planned / (peak - before), 1, 0.06) << "planned " << planned << ", measured " << peak - before;
    });
  }

  /// Measures the memory of the process, as converted copies are not known to the staging buffers.
  static void expect_planned(const RunTask& task) {
    expect_planned(task, [](const HostStaging&) { return resident_bytes(); });
  }
  static void expect_counted(const RunTask& task) {
    expect_planned(task, [](const HostStaging& staging) { return static_cast<double>(staging.bytes()); });
  }

  const test::DiskFolder folder_;
};

// Memory freed by an earlier run of the process would be reused, so each case has its own test.

TEST_F(SaveMemoryTest, MatchesEstimateWithParamRemainders) {
  expect_planned(with_remainders(task()));
}

TEST_F(SaveMemoryTest, MatchesEstimateWithParamRemaindersOnHost) {
  expect_planned(with_remainders(offloaded_to(OffloadTier::Host)));
}

TEST_F(SaveMemoryTest, MatchesEstimateWithLowPrecisionMoments) {
  expect_planned(with_small_moments());
}

TEST_F(SaveMemoryTest, MatchesEstimateWithRemaindersAndLowPrecisionMoments) {
  expect_planned(with_remainders(with_small_moments()));
}

TEST_F(SaveMemoryTest, MatchesEstimateForStatesOnAnyTier) {
  expect_counted(task());
  expect_counted(offloaded_to(OffloadTier::Host));
  expect_counted(offloaded_to(OffloadTier::File));
  expect_counted(offloaded_to(OffloadTier::Device, OffloadTier::File));
}

}  // namespace
}  // namespace mcpp
