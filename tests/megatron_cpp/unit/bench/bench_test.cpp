#include "megatron_cpp/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/file.h"
#include "megatron_cpp/commands/commands.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {
namespace {

class BenchTest : public testing::Test {
 protected:
  void SetUp() override {
    write_file_atomic(config_, R"([model]
num_layers = 2
hidden_size = 32
num_attention_heads = 4
seq_length = 16
vocab_size = 100
[training]
micro_batch_size = 2
global_batch_size = 4
train_iters = 1
[device]
num_threads = 1
)");
  }

  /// Returns the JSON that `bench <what>` prints for a tiny model.
  nlohmann::json run(const std::string& what, std::vector<std::string> more = {}) const {
    std::vector<std::string> args{"bench", what, config_.string(), "--json"};
    if (what != "checkpoint") args.insert(args.end(), {"--repeats=1", "--warmup=1"});
    args.insert(args.end(), more.begin(), more.end());
    const auto [out, error] = output(args);
    return error.empty() ? nlohmann::json::parse(out) : nlohmann::json{{"error", error}};
  }

  /// Returns the standard output and the error message, if any.
  static std::pair<std::string, std::string> output(const std::vector<std::string>& args) {
    Log log;
    const auto self = make_self_communicator();
    testing::internal::CaptureStdout();
    std::string error;
    try {
      run_program(args, log, {.ranks = *self});
    } catch (const Error& e) {
      error = e.what();
    }
    return {testing::internal::GetCapturedStdout(), error};
  }

  /// Returns the error of a command that must be rejected.
  static std::string refusal(std::vector<std::string> args) {
    args.insert(args.begin(), "bench");
    Log log;
    const auto self = make_self_communicator();
    return input_error([&] { run_program(args, log, {.ranks = *self}); });
  }

  ScratchFolder folder_;
  Path config_ = folder_.path() / "tiny.toml";
};

TEST_F(BenchTest, RunsWarmUpAndRepeats) {
  CpuDevice device;
  int calls = 0;
  EXPECT_GE(median_seconds({.warmup = 2, .repeats = 5}, device, [&] { ++calls; }), 0);
  EXPECT_EQ(calls, 7);
}

TEST_F(BenchTest, StepRatesMatchItsTime) {
  const nlohmann::json json = run("step");
  const double seconds = json["step_s"], tokens = json["tokens_per_step"];
  EXPECT_EQ(tokens, 4 * 16);
  EXPECT_GT(seconds, 0);
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * seconds, tokens, 1e-6 * tokens);
  EXPECT_NEAR(json["share_of_gemm_only"].get<double>() * json["gemm_only_tokens_per_s"].get<double>(),
              json["tokens_per_s"].get<double>(), 1e-6 * json["tokens_per_s"].get<double>());
  EXPECT_NEAR(json["share_of_cold_gemm_only"].get<double>() / json["share_of_gemm_only"].get<double>(),
              json["gemm_only_tokens_per_s"].get<double>() / json["cold_gemm_only_tokens_per_s"].get<double>(), 1e-6);
  EXPECT_GT(json["mfu"], 0);
  EXPECT_LT(json["mfu"], 1);
  EXPECT_NEAR(json["loss"], std::log(100), 0.5);
  EXPECT_EQ(json["threads"], 1);
}

/// The measurement of the peak, which takes tens of MiB, is excluded.
TEST_F(BenchTest, StepMemoryExcludesPeakMeasurement) {
  const auto [out, error] = output({"bench", "step", config_.string(), "--repeats=1", "--warmup=1"});
  EXPECT_EQ(error, "");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(out, found, std::regex("\n  parameters +(.*) \\(peak"))) << out;
  EXPECT_NE(found.str(1), "0 B");
  ASSERT_TRUE(std::regex_search(out, found, std::regex("\n  total .*\\(peak (.*)\\)"))) << out;
  EXPECT_THAT(found.str(1), testing::HasSubstr(" KiB")) << out;
}

TEST_F(BenchTest, GemmsAddUpToFlopsOfStep) {
  const nlohmann::json json = run("gemm");
  EXPECT_GT(json["peak_flops"], 0);
  EXPECT_GT(json["copy_bandwidth"], 0);
  double flops = 0;
  for (const nlohmann::json& row : json["rows"]) {
    EXPECT_GT(row["seconds"], 0) << row;
    EXPECT_GT(row["cold_seconds"], 0) << row;
    flops += row["flops"].get<double>() * row["count"].get<double>();
  }
  // 6 per weight and token: 12 h^2 in each layer, and the output's padded vocabulary.
  EXPECT_EQ(flops, 6.0 * 32 * (2 * 12 * 32 * 32 + 128 * 32));
}

TEST_F(BenchTest, CheckpointMeasuresAllTimes) {
  const Path empty = folder_ / "empty";
  const nlohmann::json json = run("checkpoint", {empty.string(), "--rounds=1"});
  for (const char* time : {"plain_write_s", "save_s", "step_s", "step_beside_save_s", "async_first_stall_s",
                           "async_stall_s", "async_total_s", "plain_read_s", "direct_read_s", "load_s"})
    EXPECT_GT(json[time].get<double>(), 0) << time;
  EXPECT_LT(json["async_stall_s"], json["async_total_s"]);
  EXPECT_TRUE(std::filesystem::is_empty(empty));
}

TEST_F(BenchTest, RejectsOutOfRangeOptions) {
  for (const std::string option : {"--repeats=0", "--repeats=-1", "--repeats=1000001", "--repeats=4294967296",
                                   "--warmup=-1", "--warmup=9223372036854775807"}) {
    const std::string error = refusal({"gemm", config_.string(), option});
    EXPECT_THAT(error, testing::HasSubstr(option + ": must be "));
    EXPECT_THAT(error, testing::HasSubstr("at most 1000000"));
  }
  EXPECT_THAT(refusal({"checkpoint", config_.string(), "folder", "--rounds=1000000000000"}),
              testing::HasSubstr("--rounds=1000000000000: must be "));
}

TEST_F(BenchTest, ErrorNamesDeviceKeyWhenGpuIsMissing) {
  const nlohmann::json json = run("step", {"--device.device=cuda"});
  if (!json.contains("error")) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(json["error"].get<std::string>(), testing::HasSubstr("device.device"));
}

}  // namespace
}  // namespace mcpp::test
