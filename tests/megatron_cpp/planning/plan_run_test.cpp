// The planner at the start of a run, and with the metrics of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/monitor/run_metrics.h"
#include "megatron_cpp/setup/layout_search.h"
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

class PlannedStartTest : public testing::Test {
 protected:
  Outcome start(std::vector<std::string> args, const std::string& config = "llama_8b.toml") const {
    args.insert(args.begin(), {"pretrain", (source_folder() / "configs" / config).string(), "--dry_run", kCatalogue});
    return Program(args, folder_ / "process").wait();
  }
  ScratchFolder folder_;
};

TEST_F(PlannedStartTest, UsesBestLayout) {
  const Outcome outcome = start({"--world_size=64", "--plan", "--hardware=h100_sxm"});
  EXPECT_THAT(outcome.out, HasSubstr("planned for 64 x H100 SXM: "));
  const Config config = load_config(source_folder() / "configs/llama_8b.toml");
  const PlannedRun run = plan_run(
      config,
      {.hardware = "h100_sxm", .hardware_folder = (source_folder() / "configs/hardware").string(), .plan = true}, 64);
  EXPECT_THAT(outcome.out, HasSubstr(run.text));
  EXPECT_THAT(run.text, HasSubstr(layout_of(run.config, 64).describe()));
}

/// With --world_size the hosts are unknown, unless --hardware describes them.
TEST_F(PlannedStartTest, PrintsNodesOfHierarchicalDispatch) {
  const auto printed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"--world_size=16", "--parallel.expert_model_parallel_size=16",
                                  "--parallel.moe_token_dispatcher_type=hierarchical"};
    args.insert(args.end(), more.begin(), more.end());
    return start(args, "deepseek_v2_lite.toml").out;
  };
  EXPECT_THAT(printed({}), HasSubstr("16, hierarchical (all on one node is assumed; parallel.moe_dispatch_node_ranks"));
  EXPECT_THAT(printed({"--hardware=h100_sxm"}), HasSubstr("16, hierarchical between 2 nodes of 8 ranks; each expert"));
  EXPECT_THAT(printed({"--parallel.moe_dispatch_node_ranks=1"}), HasSubstr("between 16 nodes of 1 rank;"));
  EXPECT_THAT(printed({"--parallel.moe_dispatch_node_ranks=32"}), HasSubstr("within nodes of 16 ranks;"));
}

TEST_F(PlannedStartTest, WarnsWhenDifferentLayoutIsMuchFaster) {
  const Outcome slow = start({"--world_size=64", "--hardware=h100_sxm", "--parallel.tensor_model_parallel_size=8",
                              "--parallel.sequence_parallel=false", "--training.micro_batch_size=1",
                              "--training.recompute_granularity=full"});
  EXPECT_THAT(slow.out, HasSubstr("predicted on 64 x H100 SXM: "));
  EXPECT_THAT(slow.out + slow.err,
              AllOf(HasSubstr("a different layout is predicted to be "), HasSubstr("--plan selects it")));
  const Config config = load_config(source_folder() / "configs/llama_8b.toml");
  PlanRequest request{
      .hardware = "h100_sxm", .hardware_folder = (source_folder() / "configs/hardware").string(), .plan = true};
  const Config best = plan_run(config, request, 64).config;
  request.plan = false;
  EXPECT_EQ(plan_run(best, request, 64).warning, "");
}

TEST_F(PlannedStartTest, PredictsNothingWithoutHardware) {
  const Outcome outcome = start({"--world_size=64"});
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("predicted")));
}

TEST_F(PlannedStartTest, RejectsImpossiblePlans) {
  const auto expect_refused = [&](const std::vector<std::string>& args, const char* reason) {
    const Outcome outcome = start(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  expect_refused({"--world_size=64", "--plan"}, "--plan: needs --hardware");
  expect_refused({"--world_size=64", "--plan", "--hardware=h100_sx"}, "did you mean h100_sxm?");
  expect_refused({"--world_size=1", "--plan", "--hardware=a100_40gb"}, "no layout fits");
  expect_refused({"--world_size=1000003", "--plan", "--hardware=h100_sxm"}, "connect at most 24576 ranks");
}

class MeasuredRunTest : public testing::Test {
 protected:
  void write(const std::string& text) const { write_file_atomic(folder_ / "metrics.jsonl", text); }
  ScratchFolder folder_;
};

TEST_F(MeasuredRunTest, UsesMedianStep) {
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
  write(
      "{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":9}\n"
      "{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":9,\"bubble\":7}\n");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "."); }),
                  "records a step without compute time: bubble 7");
  write(
      "{\"type\":\"run\",\"iteration\":1e300,\"world_size\":1e300}\n{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":"
      "9}\n"
      "{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":9,\"bubble\":0.5,\"exposed_communication\":-7}\n");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "."); }), "exposed_communication -7");
  write("{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":9000}\n");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "."); }), "has 1 log line since");
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "nowhere"); }), "no such file");
}

TEST_F(MeasuredRunTest, ReadsPeaksByClassAndModuleTimes) {
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
  EXPECT_NEAR(found.modules.at("decoder.layers.1.mlp"), 2.5e-3, 1e-12);  // mean of two ranks in two iterations
  EXPECT_NEAR(found.modules.at("output_layer"), 1e-3, 1e-12);
  EXPECT_TRUE(traced_modules(folder_ / "traces/trace_iter_0000001_0000001.json").seconds.empty());

  // A resumed run, possibly on a different layout, has no trace of its own yet.
  write(
      "{\"type\":\"run\",\"iteration\":2}\n{\"type\":\"train\",\"iteration\":3,\"elapsed_ms\":9}\n"
      "{\"type\":\"train\",\"iteration\":4,\"elapsed_ms\":9}\n");
  EXPECT_TRUE(read_measured_run(folder_ / ".").modules.empty());
  write(
      "{\"type\":\"run\",\"iteration\":1}\n{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":9}\n"
      "{\"type\":\"train\",\"iteration\":3,\"elapsed_ms\":9}\n");
  EXPECT_EQ(read_measured_run(folder_ / ".").modules.size(), 2);
}

// A trace may be damaged, or belong to a different run in the same folder.
TEST_F(MeasuredRunTest, ReadsModuleMemory) {
  const auto trace = [&](const std::string& ranks) {
    write(R"({"type":"run","iteration":0,"world_size":3})"
          "\n"
          R"({"type":"train","iteration":1,"elapsed_ms":9})"
          "\n"
          R"({"type":"train","iteration":2,"elapsed_ms":9})"
          "\n");
    write_file_atomic(
        folder_ / "trace_iter_0000002_0000002.json",
        R"({"traceEvents": [{"name": "embedding", "ph": "X", "pid": 0, "dur": 1000}], "otherData": )" + ranks + "}");
    return read_measured_run(folder_ / ".");
  };
  const MeasuredRun found = trace(R"({"ranks": [
      {"memory_bytes_by_module": {"embedding": {"parameters": 4, "activations": 8}, "output_layer": 7}},
      {"memory_bytes_by_module": {"embedding": {"parameters": 8, "gradients": null, "activations": "many"}}},
      {"memory_bytes_by_module": {"embedding": {"activations": -1e300}, "output_layer": {"parameters": 1e300}}}]})");
  ASSERT_EQ(found.module_bytes.size(), 1);
  EXPECT_THAT(found.module_bytes.at("embedding"),
              testing::ElementsAre(testing::Pair("activations", 8), testing::Pair("parameters", 6)));
  EXPECT_EQ(found.modules.size(), 1);
  for (const char* damaged :
       {R"({"ranks": [3, {"memory_bytes_by_module": []}]})", R"({"ranks": 5})", "[]", "null", "{}"})
    EXPECT_TRUE(trace(damaged).module_bytes.empty()) << damaged;
  const MeasuredRun other = trace(R"({"ranks": [{"memory_bytes_by_module": {"embedding": {"parameters": 4}}}]})");
  EXPECT_TRUE(other.module_bytes.empty());
  EXPECT_TRUE(other.modules.empty());
}

// Steps of an earlier start may have a different layout. If every iteration has a line, only the tables of ranks have
// the shares of the time.
TEST_F(MeasuredRunTest, UsesLastStart) {
  const auto step = [](int iteration, int ms) {
    return str(R"({"type":"train","iteration":)", iteration, R"(,"elapsed_ms":)", ms, "}\n");
  };
  const auto table = [](int iteration, const char* bubbles) {
    return str(R"({"type":"ranks","iteration":)", iteration, R"(,"bubble":)", bubbles,
               R"(,"exposed_communication":[0.1,0.3],"peak_memory_bytes":[70,90],"in_host_bytes":[5,6],)",
               R"("peak_by_class":{"other":[1,2]}})", "\n");
  };
  write(str(R"({"type":"run","iteration":0,"world_size":8,"config":"a"})", "\n", step(1, 9000), step(2, 1),
            table(2, "[0.9,0.9]"), step(3, 1), R"({"type":"run","iteration":3,"world_size":2,"config":"b"})", "\n",
            step(4, 9000), table(4, "[0.8,0.8]"), step(5, 100), table(6, "[0.25,0.75]"), step(6, 200), step(7, 300)));
  const MeasuredRun found = read_measured_run(folder_ / ".");
  EXPECT_EQ(found.world_size, 2);
  EXPECT_EQ(found.config, "b");
  EXPECT_EQ(found.seconds, 0.2);  // the iteration that has a table
  EXPECT_EQ(found.bubble, 0.5);
  EXPECT_EQ(found.exposed_communication, 0.2);
  EXPECT_EQ(found.peak_memory_bytes, 90);
  EXPECT_EQ(found.in_host_bytes, 6);
  write(str(R"({"type":"run","iteration":0,"world_size":8,"config":"a"})", "\n", step(1, 9000), step(2, 1),
            R"({"type":"run","iteration":2,"world_size":2,"config":"b"})", "\n", step(3, 1)));
  EXPECT_CONTAINS(input_error([&] { read_measured_run(folder_ / "."); }), "has 1 log line since the last start");
}

// A run is compared by its own configuration and number of ranks, regardless of the planned configuration.
TEST_F(MeasuredRunTest, UsesConfigurationOfRun) {
  Config run_config = load_config(source_folder() / "configs/llama_8b.toml");
  run_config.parallel.tp = 4;
  const std::string quoted = nlohmann::json(print_config(run_config)).dump();
  const auto plan = [&](const std::string& config, const std::vector<std::string>& more) {
    write(str(R"({"type":"run","iteration":0,"world_size":16,"config":)", config, "}\n",
              R"({"type":"train","iteration":1,"elapsed_ms":90000})", "\n",
              R"({"type":"train","iteration":2,"elapsed_ms":60000})", "\n"));
    std::vector<std::string> args{"plan", (source_folder() / "configs/llama_8b.toml").string(), kCatalogue,
                                  "--hardware=h100_sxm", "--from_run=" + folder_.path().string()};
    args.insert(args.end(), more.begin(), more.end());
    return Program(args, folder_ / "process").wait();
  };
  const Outcome other = plan(quoted, {"--world_size=64", "--model.vocab_size=0", "--data.tokenizer_model=t.model"});
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, AllOf(HasSubstr(", 16 ranks, tp 4, dp 4"), HasSubstr("64 x H100 SXM: ")));
  EXPECT_THAT(plan(quoted, {}).out, HasSubstr("16 x H100 SXM: "));
  const Outcome bad = plan("\"[model]\\nnum_layers = -1\"", {});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, AllOf(HasSubstr("its configuration"), HasSubstr("num_layers")));
}

TEST_F(MeasuredRunTest, CorrectsPlan) {
  write(
      "{\"type\":\"train\",\"iteration\":1,\"elapsed_ms\":90000}\n"
      "{\"type\":\"train\",\"iteration\":2,\"elapsed_ms\":60000,\"exposed_communication\":0.1}\n");
  const Outcome found = Program({"plan", (source_folder() / "configs/llama_8b.toml").string(), kCatalogue,
                                 "--hardware=h100_sxm", "--world_size=64", "--from_run=" + folder_.path().string()},
                                folder_ / "process")
                            .wait();
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"the run in ", "predicted", "measured", "compute is more than 20 % off", "and not:"})
    EXPECT_THAT(found.out, HasSubstr(part));
  const Outcome unknown = Program({"plan", (source_folder() / "configs/llama_8b.toml").string(), kCatalogue,
                                   "--hardware=h100_sxm", "--from_run=" + folder_.path().string()},
                                  folder_ / "process")
                              .wait();
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("does not state its number of ranks; set --world_size"));
}

// A calibration from a run is a hardware file with which the next start plans the same layouts.
TEST_F(MeasuredRunTest, EmitsHardwareThatPlansSameLayouts) {
  const Config run_config = load_config(source_folder() / "configs/llama_8b.toml");
  const auto write_run = [&](i64 ranks, const Config& config, double milliseconds) {
    write(str(R"({"type":"run","iteration":0,"world_size":)", ranks, R"(,"config":)",
              nlohmann::json(print_config(config)).dump(), "}\n",
              R"({"type":"train","iteration":1,"elapsed_ms":90000})", "\n",
              R"({"type":"train","iteration":2,"elapsed_ms":)", milliseconds, R"(,"exposed_communication":0.1})",
              "\n"));
  };
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args{"plan", (source_folder() / "configs/llama_8b.toml").string(), kCatalogue};
    args.insert(args.end(), more.begin(), more.end());
    return Program(args, folder_ / "process").wait();
  };
  const auto table = [](const std::string& out) { return out.substr(out.find("layouts are possible")); };
  const std::string file = folder_ / "found.toml", from_run = "--from_run=" + folder_.path().string();
  write_run(64, run_config, 60000);
  const Outcome found = plan({"--hardware=h100_sxm", from_run, "--emit_hardware=" + file});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("the adjusted hardware was written to " + file));
  EXPECT_THAT(read_text_file(file),
              AllOf(HasSubstr("# --hardware=h100_sxm adjusted to the run in "), HasSubstr("64 ranks, tp 1")));
  for (const char* ranks : {"64", "16"}) {
    const Outcome by_run = plan({"--hardware=h100_sxm", from_run, str("--world_size=", ranks)}),
                  by_file = plan({"--hardware=" + file, str("--world_size=", ranks)});
    ASSERT_EQ(by_file.code, 0) << by_file.err;
    EXPECT_EQ(table(by_file.out), table(by_run.out));
  }
  // So does the start of a run, which then stops because the example's dataset is missing.
  const Outcome start = Program({"pretrain", (source_folder() / "configs/llama_8b.toml").string(), "--dry_run",
                                 "--plan", "--world_size=64", "--hardware=" + file},
                                folder_ / "start")
                            .wait();
  EXPECT_THAT(start.out, HasSubstr("planned for 64 x H100 SXM: "));
  // Existing files are not overwritten, unusable paths are rejected, and unreadable results are not written.
  const auto expect_refused = [&](const std::string& where, const char* reason) {
    const Outcome refused = plan({"--hardware=h100_sxm", from_run, "--emit_hardware=" + where});
    EXPECT_EQ(refused.code, 2) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr(reason));
  };
  const std::string before = read_text_file(file);
  expect_refused(file, "already exists; set a new file, or remove it");
  EXPECT_EQ(read_text_file(file), before);
  expect_refused(folder_ / "found.txt", "must end in .toml");
  expect_refused(folder_ / "nowhere/found.toml", "does not exist");
  const std::string both = folder_ / "both.toml";
  EXPECT_THAT(plan({"--hardware=h100_sxm", from_run, "--emit=" + both, "--emit_hardware=" + both}).err,
              HasSubstr("--emit and --emit_hardware: name the same file"));
  write_run(64, run_config, 1e15);
  expect_refused(folder_ / "far.toml", "the run deviates too much from this hardware");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "far.toml"));
}

// Each number of ranks that a file describes is scaled by the slowdown of the run at its own number.
TEST_F(MeasuredRunTest, CorrectsEachNumberOfRanks) {
  Config run_config = load_config(source_folder() / "configs/gpt2_124m.toml");
  run_config.training.precision = Precision::Fp32;
  run_config.training.micro_batch_size = 1;
  run_config.training.global_batch_size = 4;
  const std::string config = folder_ / "ran.toml", file = folder_ / "found.toml";
  write_file_atomic(config, print_config(run_config));
  write(str(R"({"type":"run","iteration":0,"world_size":2,"config":)", nlohmann::json(print_config(run_config)).dump(),
            "}\n", R"({"type":"train","iteration":1,"elapsed_ms":90000})", "\n",
            R"({"type":"train","iteration":2,"elapsed_ms":60000})", "\n"));
  const Outcome found = Program({"plan", config, kCatalogue, "--hardware=cpu_epyc_2_cores", "--predict",
                                 "--world_size=1", "--from_run=" + folder_.path().string(), "--emit_hardware=" + file},
                                folder_ / "process")
                            .wait();
  ASSERT_EQ(found.code, 0) << found.err;
  const HardwareKind original = load_hardware("cpu_epyc_2_cores", source_folder() / "configs/hardware"),
                     is = load_hardware(file, "");
  const double factor = is.for_ranks(2).device.fp32_attained / original.for_ranks(2).device.fp32_attained;
  EXPECT_LT(factor, 0.5);
  for (const i64 ranks : {1, 2, 4}) {
    EXPECT_NEAR(is.for_ranks(ranks).device.fp32_attained / original.for_ranks(ranks).device.fp32_attained, factor,
                1e-9);
    EXPECT_NEAR(original.for_ranks(ranks).measured_fp32.update / is.for_ranks(ranks).measured_fp32.update, factor,
                1e-9);
  }
}

}  // namespace
}  // namespace mcpp
