#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "comm/local.h"
#include "megatron_cpp/setup/initialize.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(GemmTuningTest, RejectsGpuSettingsOnCpu) {
  DeviceConfig config{.device = DeviceType::Cuda, .gemm_tuning = GemmTuning::Time, .gemm_tuning_file = "choices"};
  config.allow_tf32 = true;
  config.deterministic = false;
  config.gelu_epilogue = true;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.device = DeviceType::Cpu;
  EXPECT_THAT(config.conflicts(),
              ElementsAre(StartsWith("device.gemm_tuning: only read"), StartsWith("device.gemm_tuning_file: only read"),
                          StartsWith("device.allow_tf32: only read"), StartsWith("device.gelu_epilogue: only read"),
                          StartsWith("device.deterministic: only read")));
}

TEST(GemmTuningTest, TimingNeedsFile) {
  const DeviceConfig config{.device = DeviceType::Cuda, .gemm_tuning = GemmTuning::Time, .gemm_tuning_file = ""};
  EXPECT_THAT(config.conflicts(), ElementsAre(StartsWith("device.gemm_tuning: \"time\" needs gemm_tuning_file")));
}

/// Returns the error on rank 1 of 2 about a file that rank 0 reads.
std::string error_of_loading(const DeviceConfig& config) {
  std::string message;
  run_local_ranks(2, [&](Communicator& world, int rank) {
    CpuDevice device;
    const std::string error = error_of([&] { load_gemm_algos(config, device, world); });
    if (rank == 1) message = error;
  });
  return message;
}

TEST(GemmTuningTest, RejectsUnusableFilesOnEveryRank) {
  const ScratchFolder folder;
  const std::string missing = (folder.path() / "choices").string();
  DeviceConfig config{.device = DeviceType::Cuda, .gemm_tuning_file = missing};
  EXPECT_THAT(error_of_loading(config), HasSubstr("device.gemm_tuning_file: " + missing + " does not exist"));
  config.gemm_tuning = GemmTuning::Time;
  EXPECT_EQ(error_of_loading(config), "");
  config.gemm_tuning_file = (folder.path() / "no_such_folder/choices").string();
  EXPECT_THAT(error_of_loading(config), HasSubstr("device.gemm_tuning_file: cannot write to "));
  config.gemm_tuning_file.clear();
  EXPECT_EQ(error_of_loading(config), "");
}

}  // namespace
}  // namespace mcpp::test
