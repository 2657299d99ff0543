// The planner at the start of a training, and on what a run has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/monitor/run_metrics.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/placement.h"
#include "tests/support/errors.h"
#include "tests/support/program.h"
#include "tests/support/published_runs.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace test;

const std::string kCatalogue = "--hardware_folder=" + (source_folder() / "configs/hardware").string();

class PlannedStart : public testing::Test {
 protected:
  Outcome start(std::vector<std::string> args, const std::string& config = "llama_8b.toml") const {
    args.insert(args.begin(), {"pretrain", (source_folder() / "configs" / config).string(), "--dry_run", kCatalogue});
    return Program(args, folder_ / "process").wait();
  }
  ScratchFolder folder_;
};

TEST_F(PlannedStart, TakesTheBestLayout) {
  const Outcome outcome = start({"--world_size=64", "--plan", "--hardware=h100_sxm"});
  EXPECT_THAT(outcome.out, HasSubstr("planned for 64 x H100 SXM: "));
  const Config config = load_config(source_folder() / "configs/llama_8b.toml");
  const PlannedRun run = plan_run(
      config,
      {.hardware = "h100_sxm", .hardware_folder = (source_folder() / "configs/hardware").string(), .plan = true}, 64);
  EXPECT_THAT(outcome.out, HasSubstr(run.text));
  EXPECT_THAT(run.text, HasSubstr(layout_of(run.config, 64).describe()));
}

TEST_F(PlannedStart, WarnsWhereAnotherLayoutIsMuchFaster) {
  const Outcome slow = start({"--world_size=64", "--hardware=h100_sxm", "--parallel.tensor_model_parallel_size=8",
                              "--parallel.sequence_parallel=false", "--training.micro_batch_size=1",
                              "--training.recompute_granularity=full"});
  EXPECT_THAT(slow.out, HasSubstr("predicted on 64 x H100 SXM: "));
  EXPECT_THAT(slow.out + slow.err,
              AllOf(HasSubstr("another layout is predicted to be "), HasSubstr("--plan takes it")));
  const Config config = load_config(source_folder() / "configs/llama_8b.toml");
  PlanRequest request{
      .hardware = "h100_sxm", .hardware_folder = (source_folder() / "configs/hardware").string(), .plan = true};
  const Config best = plan_run(config, request, 64).config;
  request.plan = false;
  EXPECT_EQ(plan_run(best, request, 64).warning, "");
}

TEST_F(PlannedStart, WithoutHardwareNothingIsPredicted) {
  const Outcome outcome = start({"--world_size=64"});
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("predicted")));
}

TEST_F(PlannedStart, RefusesWhatCannotBePlanned) {
  const auto expect_refused = [&](const std::vector<std::string>& args, const char* reason) {
    const Outcome outcome = start(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  expect_refused({"--world_size=64", "--plan"}, "--plan: needs --hardware");
  expect_refused({"--world_size=64", "--plan", "--hardware=h100_sx"}, "did you mean h100_sxm?");
  expect_refused({"--world_size=1", "--plan", "--hardware=a100_40gb"}, "nothing fits");
  expect_refused({"--world_size=1000003", "--plan", "--hardware=h100_sxm"}, "join 24576 at most");
}

class RunMetrics : public testing::Test {
 protected:
  void write(const std::string& text) const { write_file_atomic(folder_ / "metrics.jsonl", text); }
  ScratchFolder folder_;
};

TEST_F(RunMetrics, AreThoseOfAMiddleStep) {
  write(
      "{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":9000}\n"
      "{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":120,\"bubble\":0.25,\"exposed_communication\":0.125,"
      "\"peak_memory_bytes\":1000}\n"
      "{\"type\":\"validation\",\"iteration\":2,\"lm_loss\":1}\nnot json\n{\"type\":7}\n"
      "{\"type\":\"train\",\"iteration\":3,\"elapsed_ms\":110,\"peak_memory_bytes\":3000}\n"
      "{\"type\":\"train\",\"iteration\":4,\"elapsed_ms\":800,\"peak_memory_bytes\":2000}\n{\"type\":\"tra");
  for (const Path& run : {Path(folder_ / "."), Path(folder_ / "metrics.jsonl")}) {
    const MeasuredRun found = read_measured_run(run);
    EXPECT_EQ(found.seconds, 0.12);
    EXPECT_EQ(found.bubble, 0.25);
    EXPECT_EQ(found.exposed_communication, 0.125);
    EXPECT_EQ(found.peak_memory_bytes, 3000);
  }
  write("{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":9000}\n");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "."); }), "has 1 lines of steps");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "nowhere"); }), "there is no file");
}

TEST_F(RunMetrics, HavePeaksByClassAndTimesOfModules) {
  write(
      "{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":9}\n{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":9}\n"
      "{\"type\":\"ranks\",\"peak_by_class\":{\"parameters\":[5,7],\"activations\":[9,null]}}\n");
  std::filesystem::create_directories(folder_ / "traces");
  write_file_atomic(folder_ / "traces/trace_iter_0000001_0000001.json", "no trace");
  write_file_atomic(folder_ / "traces/trace_iter_0000002_0000003.json",
                    R"({"traceEvents": [7, {"name": 3},
      {"name": "decoder.layers.1.mlp", "ph": "X", "pid": 0, "tid": 0, "dur": 1000},
      {"name": "decoder.layers.1.mlp", "ph": "X", "pid": 0, "tid": 0, "dur": 3000},
      {"name": "decoder.layers.1.mlp", "ph": "X", "pid": 1, "tid": 0, "dur": 6000},
      {"name": "output_layer and loss", "ph": "X", "pid": 1, "tid": 0, "dur": 500},
      {"name": "output_layer", "ph": "X", "pid": 1, "tid": 0, "dur": 1500},
      {"name": "optimizer", "ph": "X", "pid": 1, "tid": 0, "dur": 1500}],
      "otherData": {"first_iteration": 2, "last_iteration": 3}})");
  const MeasuredRun found = read_measured_run(folder_ / ".");
  EXPECT_THAT(found.peak_by_class,
              testing::ElementsAre(testing::Pair("activations", 9), testing::Pair("parameters", 7)));
  ASSERT_EQ(found.modules.size(), 2);
  EXPECT_NEAR(found.modules.at("decoder.layers.1.mlp"), 2.5e-3, 1e-12);  // of two ranks, in two iterations
  EXPECT_NEAR(found.modules.at("output_layer"), 1e-3, 1e-12);
  EXPECT_TRUE(traced_modules(folder_ / "traces/trace_iter_0000001_0000001.json").empty());
}

TEST_F(RunMetrics, CorrectThePlan) {
  write(
      "{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":90000}\n"
      "{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":60000,\"exposed_communication\":0.1}\n");
  const Outcome found = Program({"plan", (source_folder() / "configs/llama_8b.toml").string(), kCatalogue,
                                 "--hardware=h100_sxm", "--world_size=64", "--from_run=" + folder_.path().string()},
                                folder_ / "process")
                            .wait();
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"the run in ", "predicted", "measured", "computing is more than 20 % off", "and not:"})
    EXPECT_THAT(found.out, HasSubstr(part));
}

}  // namespace
}  // namespace mcpp
