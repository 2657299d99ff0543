// `plan calibrate`: its measurements are accurate enough for planning, and it leaves no partial files.
#include "megatron_cpp/bench/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/local.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/config/hardware_file.h"
#include "tests/support/build.h"
#include "tests/support/disk_folder.h"
#include "tests/support/errors.h"
#include "tests/support/program.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::HasSubstr;
using namespace test;

const CalibrationSizes kFew{.gemms = {16, 48, 144},
                            .cold_bytes = 1 << 16,
                            .lengths = {32, 64},
                            .widths = {16, 32},
                            .tokens = 64,
                            .width = 64,
                            .weights = 1 << 12,
                            .layer_weights = 1 << 10,
                            .message_bytes = 1 << 16,
                            .min_seconds = 1e-4,
                            .rounds = 2};

TEST(CalibrationTest, WritesFileThatPlanAccepts) {
  Hardware found;
  run_local_ranks(2, [&](Communicator& ranks, int rank) {
    CpuDevice device({.threads = 1});
    const Hardware hardware = calibrate(device, ranks, /*cores=*/2, kFew);
    if (rank == 0) found = hardware;
    if (rank != 0) {
      EXPECT_FALSE(hardware.measured_bf16.has());
    }
  });
  EXPECT_THAT(found.conflicts(), testing::IsEmpty());
  const std::string text = print_hardware(found);
  EXPECT_EQ(print_hardware(parse_hardware(text, "printed")), text);
  EXPECT_LT(text.size(), 9000);  // numbers have four digits
  EXPECT_EQ(found.links.ranks, std::vector<i64>{2});
  EXPECT_GT(found.links.bandwidth[0], 0.01);
  EXPECT_EQ(found.device.cores, 1);
  EXPECT_EQ(found.host.cores, 2);
  EXPECT_EQ(found.concurrent_ranks(2), 2);
  for (const MeasuredRates* rates : {&found.measured_bf16, &found.measured_fp32}) {
    EXPECT_EQ(rates->forward.size(), 27);
    for (const double ns : {rates->loss, rates->update, rates->gathered, rates->scattered, rates->rope_forward,
                            rates->embedding_forward, rates->norm_forward[0], rates->activation_backward[2]})
      EXPECT_GT(ns, 0);
  }
}

// Four single-threaded ranks on two cores: the measured rates are the rates of one core, and the plan accounts for the
// sharing.
TEST(CalibrationTest, MeasuresOneRankPerCoreWhenRanksShareCores) {
  Hardware found;
  std::array<bool, 4> computed{};
  run_local_ranks(4, [&](Communicator& ranks, int rank) {
    CpuDevice device({.threads = 1});
    const Hardware hardware = calibrate(device, ranks, /*cores=*/2, kFew);
    computed[static_cast<std::size_t>(rank)] = device.memory().total.peak > (1 << 18);
    if (rank == 0) found = hardware;
  });
  EXPECT_EQ(computed, (std::array<bool, 4>{true, true, false, false}));
  EXPECT_EQ(found.links.ranks, std::vector<i64>{4});
  EXPECT_EQ(found.concurrent_ranks(4), 2);
  EXPECT_EQ(found.concurrent_ranks(1), 1);
}

// A disk is measured only if one is specified, and it must be a disk.
TEST(CalibrationTest, MeasuresNamedDisk) {
  const DiskFolder folder;
  CalibrationSizes sizes = kFew;
  sizes.disk_bytes = 3 << 20;
  const auto bandwidth = [&](const Path& disk) {
    sizes.disk = disk;
    double found = 0;
    run_local_ranks(2, [&](Communicator& ranks, int rank) {
      CpuDevice device({.threads = 1});
      const Hardware hardware = calibrate(device, ranks, /*cores=*/2, sizes);
      if (rank == 0) found = hardware.host.nvme_bandwidth;
    });
    return found;
  };
  EXPECT_GT(bandwidth(folder.path()), 1e-4);
  EXPECT_LT(bandwidth(folder.path()), 1e3);
  EXPECT_EQ(bandwidth({}), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  sizes.rounds = 1 << 30;  // would take very long, so the error must come first
  EXPECT_CONTAINS(input_error([&] { bandwidth("/dev/shm"); }), "--offload_folder");
}

TEST(CalibrationTest, MeasuresGemms) {
  CpuDevice device({.threads = 1});
  const auto self = make_self_communicator();
  CalibrationSizes sizes = kFew;
  sizes.gemms = {128, 256};
  sizes.min_seconds = 0.02;
  const Hardware hardware = calibrate(device, *self, /*cores=*/1, sizes);
  const Tensor a = random_tensor({256, 256}, DType::F32, device, 1),
               b = random_tensor({256, 256}, DType::F32, device, 2);
  Tensor c = Tensor::like(a);
  double min_seconds = 1e30, max_seconds = 0;
  for (int i = 0; i < 200; ++i) {
    const double seconds =
        median_seconds({.warmup = 0, .repeats = 1}, device, [&] { ops::matmul(a, b, c, {.transpose_b = true}); });
    min_seconds = std::min(min_seconds, seconds), max_seconds = std::max(max_seconds, seconds);
  }
  const MatmulShape shape{.m = 256, .n = 256, .k = 256};
  const double predicted = hardware.measured_fp32.gemm_seconds(shape, GemmPass::Forward);
  // The typical time is between minimum and maximum, which are far apart on a busy host.
  EXPECT_GT(predicted, 0.5 * min_seconds);
  EXPECT_LT(predicted, 1.5 * max_seconds);
}

// Even if calls are short, the first touch of pages is excluded, which takes ten times as long as a copy.
TEST(CalibrationTest, ExcludesFirstTouchFromMemoryBandwidth) {
  CpuDevice device({.threads = 1});
  CalibrationSizes sizes = kFew;
  sizes.min_seconds = 1e-4;
  const double measured = calibrate(device, *make_self_communicator(), /*cores=*/1, sizes).device.memory_attained;
  const Tensor from = random_tensor({32 << 20}, DType::F32, device, 1);
  Tensor to = random_tensor({32 << 20}, DType::F32, device, 2);
  const double seconds = median_seconds({.warmup = 1, .repeats = 5}, device, [&] { ops::copy(from, to); });
  EXPECT_GT(measured, 0.4 * 2e-9 * static_cast<double>(from.bytes()) / seconds);
}

class CalibrateCommandTest : public testing::Test {
 protected:
  Outcome run(const std::vector<std::string>& args) const {
    std::vector<std::string> words{"plan", "calibrate", "--device=cpu"};
    words.insert(words.end(), args.begin(), args.end());
    return Program(words, folder_ / "process").wait();
  }
  ScratchFolder folder_;
};

TEST_F(CalibrateCommandTest, RejectsUnwritableOutputBeforeMeasuring) {
  for (const auto& [out, reason] : {std::pair<std::string, const char*>{"here.txt", "must end in .toml"},
                                    {"no/such/folder/a.toml", "does not exist"},
                                    {"", "out"}}) {
    const Outcome outcome = run({"--out=" + out});
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
    EXPECT_LT(outcome.cpu_seconds, 2);
  }
}

// GPUs are not measured, and the rates of CPUs must not be used for GPUs.
TEST_F(CalibrateCommandTest, RejectsGpus) {
  const std::string file = folder_ / "machine.toml";
  std::vector<std::vector<std::string>> refused{{"--device=cuda"}};
  if (built_with_cuda()) refused.push_back({"--device=auto"});
  for (std::vector<std::string> args : refused) {
    args.insert(args.begin(), {"plan", "calibrate", "--out=" + file});
    const Outcome outcome = Program(args, folder_ / "process").wait();
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr("plan calibrate measures CPUs, not GPUs"));
    EXPECT_LT(outcome.cpu_seconds, 2);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

// All numbers of ranks in a file must describe the same host.
TEST_F(CalibrateCommandTest, AddsOnlyToFilesOfThisHost) {
  const Path catalogue_folder = source_folder() / "configs/hardware";
  const auto expect_refused = [&](const std::string& text, const char* reason) {
    const Path file = folder_ / "machine.toml";
    write_file_atomic(file, text);
    const Outcome outcome = run({"--add", "--out=" + file.string()});
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
    EXPECT_LT(outcome.cpu_seconds, 5);
    EXPECT_EQ(read_text_file(file), text);
  };
  expect_refused(read_text_file(catalogue_folder / "a100_80gb.toml"), "was not measured by plan calibrate");
  expect_refused(read_text_file(catalogue_folder / "cpu_epyc_2_cores.toml"),
                 "describes EPYC with 2 cores with 2 cores, but");
  expect_refused("no file\n", "machine.toml:1");
}

TEST_F(CalibrateCommandTest, KeepsOldFileWhenKilled) {
  const Path file = folder_ / "machine.toml";
  write_file_atomic(file, "old");
  Program program({"plan", "calibrate", "--device=cpu", "--out=" + file.string()}, folder_ / "process");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().code, -SIGKILL);
  EXPECT_EQ(read_text_file(file), "old");
  EXPECT_EQ(folder_.count(), 3);  // the file and the outputs of the process
}

}  // namespace
}  // namespace mcpp
