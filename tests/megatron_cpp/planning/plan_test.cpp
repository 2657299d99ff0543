// The `plan` command and the hardware files that it reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/json.h"
#include "base/strings.h"
#include "data/dataset/dataset_info.h"
#include "megatron_cpp/config/hardware_file.h"
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

class PlanCommandTest : public testing::Test {
 protected:
  using Strings = std::vector<std::string>;
  Outcome run(std::vector<std::string> args) const {
    args.insert(args.begin(), {"plan", (source_folder() / "configs/llama_70b.toml").string()});
    const auto is_folder = [](const std::string& arg) { return arg.starts_with("--hardware_folder="); };
    if (std::ranges::none_of(args, is_folder))
      args.push_back("--hardware_folder=" + (source_folder() / "configs/hardware").string());
    return Program(args, folder_ / "process").wait();
  }
  void expect_refused(const std::vector<std::string>& args, const std::vector<std::string>& parts) const {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  ScratchFolder folder_;
};

TEST_F(PlanCommandTest, EmitsConfigurationForPretrain) {
  const std::string file = folder_ / "found.toml";
  const Outcome found = run({"--hardware=h200_sxm", "--world_size=256", "--explain", "--emit=" + file});
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"rule-of-thumb layout:", "256 x H200 SXM:", "and not:", "the configuration's own layout",
                           "GEMMs", "MFU", "HFU"})
    EXPECT_THAT(found.out, HasSubstr(part));
  const Outcome checked = Program({"config", file}, folder_ / "config").wait();
  EXPECT_EQ(checked.code, 0) << checked.err;
  // Only the example's dataset is missing.
  const Outcome dry = Program({"pretrain", file, "--world_size=256", "--dry_run"}, folder_ / "dry").wait();
  EXPECT_THAT(dry.out, HasSubstr("layout: 256 ranks"));
  EXPECT_THAT(dry.err, AllOf(HasSubstr("dataset /data/corpus: there is no file"), Not(HasSubstr("parallel:"))));
}

// The emitted sections include the offload and communication settings of the best layout.
TEST_F(PlanCommandTest, EmitsOffloadAndCommunicationSettings) {
  const std::string file = folder_ / "found.toml", hardware_folder = folder_ / "kinds";
  std::filesystem::create_directories(hardware_folder);
  Hardware hardware = catalogue("h100_sxm");
  hardware.host.memory = 64;
  hardware.links.bandwidth = {450, 1, 1, 1};
  write_file_atomic(hardware_folder + "/small_host.toml", print_hardware(hardware));
  const auto emitted = [&](const std::string& kind, const std::string& ranks, const Strings& more = {}) {
    Strings args{"--hardware=" + kind, "--hardware_folder=" + hardware_folder, "--world_size=" + ranks,
                 "--emit=" + file};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome found = run(args);
    EXPECT_EQ(found.code, 0) << found.err;
    return found.out;
  };
  EXPECT_THAT(emitted("small_host", "8"), AllOf(HasSubstr("optimizer state on disk"),
                                                HasSubstr("before training set its optimizer.offload_folder")));
  EXPECT_THAT(read_text_file(file), HasSubstr("offload = \"file\""));
  EXPECT_THAT(Program({"config", file}, folder_ / "bare").wait().err,
              HasSubstr("optimizer.offload_folder: is missing"));
  const Outcome dry =
      Program({"pretrain", file, "--world_size=8", "--dry_run", "--optimizer.offload_folder=/scratch"}, folder_ / "dry")
          .wait();
  EXPECT_THAT(dry.err, AllOf(HasSubstr("dataset /data/corpus: there is no file"), Not(HasSubstr("offload_folder: "))));

  EXPECT_THAT(emitted("small_host", "64", {"--allow_lossy_comm", "--tp=1", "--pp=1"}), HasSubstr("gradients packed"));
  EXPECT_THAT(read_text_file(file), HasSubstr("zero_quantized_gradients = true"));
  EXPECT_THAT(Program({"config", file, "--optimizer.offload_folder=/scratch"}, folder_ / "config").wait().err,
              Not(HasSubstr("zero_")));
}

TEST_F(PlanCommandTest, PredictsLayoutOfConfiguration) {
  const std::string tp = "--parallel.tensor_model_parallel_size=8";
  const Outcome table = run({"--hardware=h100_sxm", "--world_size=64", "--predict", tp});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("a step of tp 8"), HasSubstr("GEMMs"), HasSubstr("of memory"),
                               Not(HasSubstr("layouts are possible"))));
  const Outcome json = run({"--hardware=h100_sxm", "--world_size=64", "--predict", "--json", tp});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json object = parse_json(json.out, "plan");
  double sum = 0;
  for (const auto& part : object["parts_s"]) sum += part.get<double>();
  EXPECT_NEAR(sum / object["step_s"].get<double>(), 1, 1e-9);
  EXPECT_GT(object["memory_bytes"].get<double>(), 1e9);
  EXPECT_EQ(object["fits"].get<bool>(), object["memory_bytes"].get<double>() <= 0.92 * 80e9);
  EXPECT_FALSE(object.contains("device_hours"));
  const Outcome training = run({"--hardware=h100_sxm", "--world_size=64", "--predict", "--json", tp, "--tokens=1e12"});
  const Json costs = parse_json(training.out, "plan");
  EXPECT_NEAR(costs["training_hours"].get<double>(), 1e12 / object["tokens_per_s"].get<double>() / 3600, 1e-6);
  EXPECT_NEAR(costs["device_hours"].get<double>() / costs["training_hours"].get<double>(), 64, 1e-9);
  const auto fits = [&](const std::string& ranks) {
    const Outcome outcome = run({"--hardware=h200_sxm", ranks, "--predict", "--json", tp, "--parallel.zero_stage=1"});
    return parse_json(outcome.out, "plan")["fits"].get<bool>();
  };
  EXPECT_FALSE(fits("--world_size=8"));
  EXPECT_TRUE(fits("--world_size=64"));
  expect_refused({"--hardware=h100_sxm", "--predict"}, {"--predict: needs --world_size"});
  expect_refused({"--hardware=tpu_v5p", "--world_size=64", "--predict", tp, "--training.offload_activations=file",
                  "--optimizer.offload_folder=/scratch"},
                 {"a step cannot be predicted: host.nvme_bandwidth: is unknown for TPU v5p", "activations on disk"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--json"}, {"--json: applies only to --predict"});
  expect_refused({"--hardware=h100_sxm", "--world_size=32771", "--predict", tp},
                 {"the configuration's layout cannot run", "32771", "connect at most 24576 ranks"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--predict", "--scale=8,16", "--emit=x.toml"},
                 {"--predict and --scale: exclude each other", "--emit: needs the best layout"});
}

/// With hierarchical dispatch, memory depends on the nodes, which the hardware defines.
TEST_F(PlanCommandTest, EstimatesMemoryOnNodesOfHardware) {
  const auto memory = [&](const Strings& more) {
    Strings args{"plan",
                 (source_folder() / "configs/deepseek_v2_lite.toml").string(),
                 "--hardware=h100_sxm",
                 "--hardware_folder=" + (source_folder() / "configs/hardware").string(),
                 "--world_size=16",
                 "--predict",
                 "--json",
                 "--model.vocab_size=1000",  // otherwise the peak is in the output layer
                 "--parallel.expert_model_parallel_size=16",
                 "--parallel.moe_token_dispatcher_type=hierarchical"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Program(args, folder_ / "process").wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "plan")["memory_bytes"].get<double>();
  };
  const double on_two_nodes = memory({});
  EXPECT_EQ(on_two_nodes, memory({"--parallel.moe_dispatch_node_ranks=8"}));
  EXPECT_NE(on_two_nodes, memory({"--parallel.moe_dispatch_node_ranks=16"}));
}

TEST_F(PlanCommandTest, PredictsLowPrecisionRecipes) {
  const auto seconds = [&](const std::string& hardware, const Strings& more) {
    Strings args{"--hardware=" + hardware,
                 "--world_size=64",
                 "--predict",
                 "--json",
                 "--parallel.tensor_model_parallel_size=8",
                 "--training.recompute_granularity=full"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "plan")["step_s"].get<double>();
  };
  const std::string fp8 = "--training.fp8=e4m3";
  const auto recipe = [](const std::string& name) { return "--training.fp8_recipe=" + name; };
  const double plain = seconds("b200", {}), tensorwise = seconds("b200", {fp8});
  EXPECT_LT(tensorwise, plain);
  EXPECT_LT(seconds("b200", {fp8, recipe("mxfp8")}), tensorwise) << "needs no largest magnitudes";
  EXPECT_GT(seconds("b200", {fp8, recipe("blockwise")}), plain) << "is emulated";
  EXPECT_LT(seconds("h100_sxm", {fp8, recipe("blockwise")}), seconds("h100_sxm", {}));
  EXPECT_GT(seconds("h100_sxm", {fp8, recipe("mxfp8")}), seconds("h100_sxm", {})) << "is emulated";
  const Strings search{"--hardware=h100_sxm", "--world_size=64", "--tp=8", "--pp=1", fp8};
  Strings blockwise = search, mxfp8 = search;
  blockwise.push_back(recipe("blockwise")), mxfp8.push_back(recipe("mxfp8"));
  EXPECT_THAT(run(blockwise).out,
              HasSubstr("blockwise: not measured on H100 SXM (device.blockwise_attained); predicted "
                        "at 1403 TFLOP/s, 71 % of the peak, the fraction of fp8"));
  EXPECT_THAT(run(mxfp8).out,
              HasSubstr("mxfp8: H100 SXM has no such GEMMs (device.mxfp8_peak), so operands are rounded "
                        "and multiplied in bf16"));
  expect_refused({"--hardware=a100_80gb", "--world_size=64", fp8},
                 {"training.fp8: A100 SXM 80GB has no fp8 GEMMs for the recipe \"tensorwise\" (device.fp8_peak"});
  expect_refused({"--hardware=cpu_epyc_2_cores", "--world_size=2", fp8, recipe("mxfp8")},
                 {"training.fp8: the time of low precision on EPYC core is not predicted"});
}

TEST_F(PlanCommandTest, PredictsMegatronCore) {
  const std::string core = "--implementation=megatron_core", tp = "--parallel.tensor_model_parallel_size=8",
                    zero = "--parallel.zero_stage=1";
  const auto predicted = [&](const std::string& implementation) {
    const Outcome outcome =
        run({"--hardware=h100_sxm", "--world_size=64", "--predict", "--json", tp, zero, implementation});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "plan");
  };
  const Json own = predicted("--implementation=megatron_cpp"), other = predicted(core);
  EXPECT_EQ(own["implementation"], "megatron_cpp");
  EXPECT_EQ(other["implementation"], "megatron_core");
  EXPECT_GT(other["step_s"].get<double>(), own["step_s"].get<double>());
  EXPECT_EQ(other["memory_bytes"], own["memory_bytes"]);
  const Outcome found = run({"--hardware=h100_sxm", "--world_size=64", "--tp=8", core});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("Megatron Core of 2026"), HasSubstr("64 x H100 SXM with megatron_core: "),
                               Not(HasSubstr("zb-")), Not(HasSubstr("ZeRO 3"))));
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--predict", tp, "--parallel.zero_stage=3", core,
                  "--training.offload_activations=host"},
                 {"--implementation=megatron_core: cannot be predicted with",
                  "parallel.zero_stage = 3: ", "training.offload_activations"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", core, "--optimizer.ema_decay=0.99"},
                 {"optimizer.ema_decay: Megatron Core does not average weights"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", core, "--emit=" + (folder_ / "run.toml").string()},
                 {"--emit: writes a configuration for megatron_cpp; remove --implementation"});
}

TEST_F(PlanCommandTest, DrawsScheduleAndExplainsUpgrades) {
  const std::string file = folder_ / "step.svg";
  const Outcome found = run({"--hardware=h100_sxm", "--world_size=128", "--pp=4", "--explain", "--svg=" + file,
                             "--mtbf_hours=50000", "--save_seconds=30"});
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"pp 4", "fc1 ", "speedup of the same layout with", "twice the bandwidth of nvlink",
                           "failures: 0.06 a day", "a checkpoint has "})
    EXPECT_THAT(found.out, HasSubstr(part));
  EXPECT_THAT(read_text_file(file), AllOf(HasSubstr("<svg"), HasSubstr("rank 3"), Not(HasSubstr("rank 4"))));
}

TEST_F(PlanCommandTest, SimulatesGoodputWithFailures) {
  const Outcome found =
      run({"--hardware=h100_sxm", "--world_size=64", "--predict", "--parallel.zero_stage=1",
           "--parallel.tensor_model_parallel_size=8", "--mtbf_hours=1000", "--restart_seconds=60", "--goodput"});
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"goodput with random failures (400 simulated", "on disks", "in memory", "best"})
    EXPECT_THAT(found.out, HasSubstr(part));
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--goodput"}, {"--goodput: needs --mtbf_hours"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--goodput", "--mtbf_hours=1e308"},
                 {"--mtbf_hours=1e308: must be"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--mtbf_hours=5", "--goodput", "--scale=8,16"},
                 {"--goodput: prints a table for one layout"});
}

TEST_F(PlanCommandTest, ComparesGivenWorldSizes) {
  const Outcome strong = run({"--hardware=h100_sxm", "--scale=64,128,131,32768"});
  ASSERT_EQ(strong.code, 0) << strong.err;
  for (const char* part :
       {"strong scaling on H100 SXM", "     128    1024", "by Amdahl's law", "     131    1024  no layout divides",
        "   32768    1024  world_size = 32768, but the links of H100 SXM connect at most 24576 ranks"})
    EXPECT_THAT(strong.out, HasSubstr(part));
  const Outcome weak = run({"--hardware=h100_sxm", "--scale=64,128", "--weak"});
  EXPECT_THAT(weak.out, AllOf(HasSubstr("      64    1024"), HasSubstr("     128    2048"), Not(HasSubstr("Amdahl"))));
}

// `plan scale`: all powers of two up to the world size; small ones do not fit.
TEST_F(PlanCommandTest, ComparesPowersOfTwoByDefault) {
  const auto scale = [&](const Strings& more) {
    Strings args{"plan", "scale", (source_folder() / "configs/llama_8b.toml").string(), "--hardware=h100_sxm",
                 "--hardware_folder=" + (source_folder() / "configs/hardware").string()};
    args.insert(args.end(), more.begin(), more.end());
    return Program(args, folder_ / "process").wait();
  };
  const Outcome doubled = scale({"--world_size=24"});
  ASSERT_EQ(doubled.code, 0) << doubled.err;
  for (const char* row : {"\n       1 ", "\n       2 ", "\n       4 ", "\n       8 ", "\n      16 ", "\n      24 "})
    EXPECT_THAT(doubled.out, HasSubstr(row));
  EXPECT_THAT(doubled.out, HasSubstr("best by time: 24 ranks, "));
  // In rising order, without duplicates, independently of the order on the command line.
  EXPECT_EQ(scale({"--scale=16,8,16"}).out, scale({"--scale=8,16"}).out);
  const Outcome none = scale({});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("plan scale: needs --world_size (compares 1, 2, 4, ... ranks) or --scale="));
  const Outcome both = scale({"--scale=8,16", "--world_size=8"});
  EXPECT_THAT(both.err, HasSubstr("--world_size: is not used with --scale"));
  const Outcome help = scale({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("megatron_cpp plan scale"), HasSubstr("objective")));
  const Outcome other = Program({"plan", "predict", "configs/llama_8b.toml"}, folder_ / "other").wait();
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("plan predict: is not a command; use an option, plan CONFIG --predict"));
}

/// A row of the table of --scale.
struct ScaleRow {
  double ranks = 0, batch = 0, seconds = 0, gibibytes = 0, device_hours = 0;
};
std::vector<ScaleRow> rows_of(const std::string& table) {
  std::vector<ScaleRow> rows;
  for (const std::string& line : split(table, '\n')) {
    std::istringstream words(line);
    ScaleRow row;
    std::string rate, percent, sign, bytes, hours;
    if (!(words >> row.ranks >> row.batch >> row.seconds >> rate >> percent >> sign >> row.gibibytes >> bytes >> hours))
      continue;
    row.device_hours = std::stod(hours) * (hours.ends_with("K") ? 1e3 : hours.ends_with("M") ? 1e6 : 1);
    rows.push_back(row);
  }
  return rows;
}

// Device hours are recomputed from the table's rows, and the best row by each objective is checked.
TEST_F(PlanCommandTest, FindsBestWorldSizeByObjective) {
  const auto with = [&](const std::string& objective, const Strings& more = {}) {
    Strings args{"--hardware=h100_sxm",     "--scale=2048,64,256", "--tokens=1e12", "--price=2", "--tp=8", "--cp=1",
                 "--objective=" + objective};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const auto expect_best = [](const Outcome& outcome, const std::string& objective, double ScaleRow::*value) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<ScaleRow> rows = rows_of(outcome.out);
    ASSERT_EQ(rows.size(), 3) << outcome.out;
    const ScaleRow best_row = *std::ranges::min_element(rows, {}, value);
    EXPECT_THAT(outcome.out, HasSubstr(str("best by ", objective, ": ", best_row.ranks, " ranks, ")));
    for (const ScaleRow& row : rows) {
      const double hours = row.ranks * row.seconds * 1e12 / (row.batch * 8192) / 3600;
      EXPECT_NEAR(row.device_hours / hours, 1, 1e-3) << row.ranks;
    }
  };
  const Outcome time = with("time"), cheap = with("device_hours"), small = with("memory");
  expect_best(time, "time", &ScaleRow::seconds);
  expect_best(cheap, "device_hours", &ScaleRow::device_hours);
  expect_best(small, "memory", &ScaleRow::gibibytes);
  EXPECT_THAT(cheap.out, AllOf(HasSubstr("device hours are of 1.0T tokens"), HasSubstr(" at 2.00 each "),
                               Not(HasSubstr("best by device_hours: 2048 "))));
  EXPECT_THAT(time.out, HasSubstr("best by time: 2048 "));
  EXPECT_LT(rows_of(small.out).front().gibibytes, rows_of(time.out).front().gibibytes);
  EXPECT_THAT(with("deadline", {"--deadline_hours=2000"}).out, HasSubstr("best by deadline: 256 ranks, "));
  const Outcome late = with("device_hours", {"--deadline_hours=1"});
  EXPECT_EQ(late.code, 2);
  EXPECT_THAT(late.out, HasSubstr("strong scaling on H100 SXM"));
  EXPECT_THAT(late.err, HasSubstr("none of these numbers of ranks can train on 1.0T tokens in 1.0 hours"));
  const Outcome none = run({"--hardware=a100_40gb", "--scale=1,2"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no layout fits for any of these numbers of ranks"));
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--objective=device_hours", "--weak"},
                 {"--objective=device_hours: compares numbers of ranks", "--weak: applies only to --scale"});
  expect_refused(
      {"--hardware=h100_sxm", "--world_size=64", "--objective=memory", "--tokens=1e12", "--deadline_hours=9"},
      {"--deadline_hours: minimizes the number of devices", "--world_size: is not used with --deadline_hours"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--objective=deadline"},
                 {"--objective=deadline: needs --tokens and --deadline_hours"});
  expect_refused({"--hardware=h100_sxm", "--scale=96,128,100", "--weak"},
                 {"--weak: 1024 samples for 96 ranks are not an integer for 100 and 128"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--tokens=0.5", "--document_tokens=0.1"},
                 {"--tokens=0.5: must be 0 or at least 1", "--document_tokens=0.1: must be 0 or at least 1"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--objective=cheap"}, {"objective", "\"device_hours\""});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--objective=memory", "--predict"},
                 {"--objective=memory: applies to a search"});
}

TEST_F(PlanCommandTest, FindsLayoutWithMinimumMemory) {
  const Outcome found = run({"--hardware=h100_sxm", "--world_size=64", "--objective=memory", "--tokens=1e12"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr(" % more memory, most of it "), HasSubstr("1.0T tokens take ")));
}

// Masked attention costs nothing, as far as the documents are known.
TEST_F(PlanCommandTest, AccountsForDocumentMask) {
  const std::string mask = "--data.reset_attention_mask=true", prefix = folder_ / "text";
  const auto seconds = [&](const Strings& more) {
    Strings args{"--hardware=h100_sxm",
                 "--world_size=64",
                 "--predict",
                 "--json",
                 "--model.seq_length=65536",
                 "--parallel.tensor_model_parallel_size=8",
                 "--training.recompute_granularity=full"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const bool warns = outcome.err.find("set --document_tokens=N") != std::string::npos;
    return std::pair(parse_json(outcome.out, "plan")["parts_s"]["attention"].get<double>(), warns);
  };
  const auto [whole, ignored] = seconds({});
  EXPECT_FALSE(ignored);
  const auto [unknown, warns] = seconds({mask});
  EXPECT_EQ(unknown, whole);
  EXPECT_TRUE(warns);
  const auto [short_ones, warns_of_known] = seconds({mask, "--document_tokens=1000"});
  EXPECT_FALSE(warns_of_known);
  EXPECT_LT(short_ones, 0.05 * whole);
  DatasetInfo info;
  info.documents = 20, info.tokens = 20000;
  write_dataset_info(prefix, info);
  EXPECT_EQ(seconds({mask, "--data.data_path=" + prefix}).first, short_ones);
  EXPECT_EQ(seconds({mask, "--data.data_path=" + prefix, "--document_tokens=1e12"}).first, whole);
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--document_tokens=1000"},
                 {"--document_tokens: applies only to data.reset_attention_mask"});
}

TEST_F(PlanCommandTest, FindsMinDevicesForDeadline) {
  const Outcome found =
      run({"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=720", "--price=2", "--mtbf_hours=50000"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("tokens in 720.0 hours: "), HasSubstr(" x H100 SXM take "),
                               HasSubstr(" device hours, at 2.00 each ")));
  const std::vector<std::string> fewer{"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=720", "--tp=8",
                                       "--pp=1"};
  std::vector<std::string> with_objective = fewer;
  with_objective.push_back("--objective=deadline");
  EXPECT_EQ(run(with_objective).out, run(fewer).out);
  expect_refused(
      {"--hardware=h100_sxm", "--tokens=1e18", "--deadline_hours=1", "--tp=8"},
      {"no number of H100 SXM that the links connect suffices; all 24576 at their highest rate would take "});
  expect_refused({"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=1e5", "--tp=8", "--mtbf_hours=0.01",
                  "--restart_seconds=1e9"},
                 {"the links connect suffices; devices fail before any progress is made"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--deadline_hours=720"},
                 {"--deadline_hours: needs --tokens", "--world_size: is not used with --deadline_hours"});
}

TEST_F(PlanCommandTest, ReportsWhenNothingFits) {
  expect_refused({"--hardware=a100_40gb", "--world_size=4"},
                 {"no layout fits: of ", " layouts of 4 ranks", " ranks, the smallest, ",
                  "the smallest world size that fits is "});
}

TEST_F(PlanCommandTest, ReportsAllBadInputTogether) {
  expect_refused({"--world_size=8"}, {"hardware"});
  expect_refused({"--hardware=h100_sxm"}, {"--world_size: is missing"});
  expect_refused({"--hardware=h100_sx", "--world_size=8"}, {"unknown hardware \"h100_sx\"", "did you mean h100_sxm?"});
  expect_refused(
      {"--hardware=zzz", "--world_size=8"},
      {"unknown hardware \"zzz\"", "available are a100_40gb, a100_80gb", "megatron_cpp plan calibrate --out="});
  expect_refused({"--hardware=here.toml", "--world_size=8"},
                 {"here.toml does not exist", "megatron_cpp plan calibrate --out="});
  expect_refused({"--hardware=cpu_epyc_2_cores", "--scale=1,2"},
                 {"--scale: --hardware=cpu_epyc_2_cores describes 1, 2, 4 ranks separately"});
  expect_refused({"--hardware=cpu_epyc_2_cores", "--tokens=1e9", "--deadline_hours=9"},
                 {"--deadline_hours: --hardware="});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--emit_hardware=" + (folder_ / "new.toml").string()},
                 {"--emit_hardware: applies only to --from_run, the run to adjust the hardware to"});
  expect_refused({"--hardware=a100_80gb", "--world_size=64", "--micro_batch_size=7"},
                 {"micro_batch_size = 7 does not divide global_batch_size = 1024"});
  expect_refused({"--hardware=a100_80gb", "--world_size=10000", "--tp=3", "--pp=81"},
                 {"world_size = 10000, but the links of A100 SXM 80GB connect at most 8192 ranks",
                  "tensor_model_parallel_size = 3 does not divide num_attention_heads = 64",
                  "pipeline_model_parallel_size = 81 is above num_layers = 80"});
  // The error lists problems of the arguments, the configuration and the hardware.
  expect_refused({"--hardware=h100_sx", "--world_size=8", "--model.num_layers=-1", "--keep=0"},
                 {"unknown hardware \"h100_sx\"", "num_layers", "keep"});
  expect_refused({"--hardware=h100_sxm", "--tokens=5"},
                 {"--world_size: is missing", "or --tokens and --deadline_hours"});
  expect_refused({"--hardware=h100_sxm", "--from_run=runs/x"}, {"--from_run=runs/x: no such file: runs/x"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--mtbf_hours=1e-300", "--weak"},
                 {"--mtbf_hours=1e-300: must be 0 or at least 0.01", "--weak: applies only to --scale"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--mtbf_hours=5", "--save_seconds=1e300"},
                 {"save_seconds", "at most"});
  expect_refused({"--hardware=h100_sxm", "--world_size=7", "--tp=1", "--pp=1"}, {"no layout of 7 ranks divides"});
  expect_refused({"--hardware=h100_sxm", "--tokens=1e30", "--deadline_hours=1e300", "--price=-1"},
                 {"tokens", "deadline_hours", "price", "at most"});
}

// Options that would have no effect are also named.
TEST_F(PlanCommandTest, RejectsOptionsWithoutEffect) {
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--predict", "--tp=8", "--micro_batch_size=1",
                  "--allow_lossy_comm", "--price=2", "--save_seconds=3", "--restart_seconds=4"},
                 {"--tp: limits a search", "--micro_batch_size: limits a search", "--allow_lossy_comm: limits a search",
                  "--price: applies only to --tokens", "--save_seconds: applies only to --mtbf_hours",
                  "--restart_seconds: applies only to --mtbf_hours"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--scale=8,16"}, {"--world_size: is not used with --scale"});
  // Layouts that no world can run are not searched.
  const std::vector<std::string> impossible{"no layout can be found", "tensor_model_parallel_size = 3 does not divide"};
  expect_refused({"--hardware=h100_sxm", "--scale=8,16", "--tp=3"}, impossible);
  expect_refused({"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=9", "--tp=3"}, impossible);
  // Unwritable files are rejected before the search.
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--svg=/nowhere/x.svg", "--html=/nowhere/x.html",
                  "--emit=" + folder_.path().string()},
                 {"--svg=/nowhere/x.svg: the folder /nowhere does not exist", "--html=/nowhere/x.html: the folder",
                  ": is a folder"});
}

TEST(HardwareFileTest, CatalogueIsValid) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "configs/hardware")) {
    const HardwareKind kind = load_hardware(entry.path().stem(), entry.path().parent_path());
    for (const auto& [ranks, hardware] : kind.by_ranks) {
      const bool is_processor = hardware.measured_bf16.has();
      EXPECT_GT(hardware.device.bf16_peak, is_processor ? 0.01 : 100) << entry.path();
      EXPECT_EQ(is_processor, hardware.host.cores > 0) << entry.path();
    }
    EXPECT_EQ(print_hardware(parse_hardware(print_hardware(kind), "printed")), print_hardware(kind));
    ++files;
  }
  EXPECT_GE(files, 10);
}

// Ranks on one processor share it: the rates of one of two ranks differ from those of a single rank.
TEST(HardwareFileTest, MayDependOnNumberOfRanks) {
  const HardwareKind kind = load_hardware("cpu_epyc_2_cores", source_folder() / "configs/hardware");
  EXPECT_TRUE(kind.depends_on_ranks());
  EXPECT_EQ(kind.for_ranks(1).device.cores, 2);
  EXPECT_EQ(kind.for_ranks(2).device.cores, 1);
  EXPECT_EQ(kind.for_ranks(2).links.ranks, std::vector<i64>{2});
  EXPECT_EQ(kind.for_ranks(3).links.ranks, std::vector<i64>{4});  // the smallest described number that is large enough
  EXPECT_EQ(kind.for_ranks(1000).links.ranks, std::vector<i64>{4});
  EXPECT_EQ(kind.for_ranks(4).concurrent_ranks(4), 2);
  const HardwareKind any = load_hardware("h100_sxm", source_folder() / "configs/hardware");
  EXPECT_FALSE(any.depends_on_ranks());
  EXPECT_EQ(&any.for_ranks(1), &any.for_ranks(64));
}

TEST(HardwareFileTest, ReportsAllBadNumbersOfRanks) {
  const HardwareKind kind{.by_ranks = {{2, catalogue("cpu_epyc_2_cores")}, {4, catalogue("cpu_epyc_2_cores")}}};
  const std::string good = print_hardware(kind);
  const auto error_of = [&](const std::string& from, const std::string& to, const std::string& before = "") {
    std::string text = before + good;
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    return input_error([&] { parse_hardware(text, "mine.toml"); });
  };
  // A measurement on one rank joins no more ranks.
  const std::string errors = error_of("", "");
  EXPECT_CONTAINS(errors, "ranks_2.links.ranks: connect 1, but [ranks_2] describes 2 ranks");
  EXPECT_CONTAINS(errors, "ranks_4.links.ranks: connect 1, but [ranks_4] describes 4 ranks");
  EXPECT_CONTAINS(error_of("cores = 2", "cors = 2"), "ranks_2.device.cors: unknown key; did you mean device.cores?");
  EXPECT_CONTAINS(error_of("kernel_gap = 0.02722", "kernel_gap = nan"), "ranks_2.device.kernel_gap: must be finite");
  EXPECT_CONTAINS(error_of("kernel_gap = 0.02722\n", ""), "mine.toml: ranks_2.device.kernel_gap: is missing");
  EXPECT_CONTAINS(error_of("", "", "[host]\nmemory = 1.0\n"),
                  "[host] applies to any number of ranks, and [ranks_2.host] to some");
  for (const char* table : {"ranks_0", "ranks_02", "ranks_x", "ranks_", "ranks_99999999999999999999", "ranks_-2"})
    EXPECT_CONTAINS(error_of("", "", str("[", table, ".device]\ncores = 1\n")), str("[", table, "]"));
  EXPECT_CONTAINS(input_error([] { parse_hardware("[ranks_2]\n", "mine.toml"); }),
                  "mine.toml: ranks_2.device.name: is missing");
  EXPECT_CONTAINS(input_error([] { parse_hardware("ranks_2 = 3\n", "mine.toml"); }), "ranks_2");
}

TEST(HardwareFileTest, ReportsAllProblems) {
  const std::string error = input_error([] {
    parse_hardware("[device]\nname = \"x\"\nbf16_peak = -1.0\ncors = 3\n[links]\ntier = [\"a\", \"b\"]\nranks = [8]\n",
                   "mine.toml");
  });
  for (const char* part :
       {"mine.toml:3:1: device.bf16_peak: must be at least 1e-06 and at most",
        "device.cors: unknown key; did you mean device.cores?", "device.memory_bandwidth: is missing",
        "links.bandwidth: is missing", "host.memory: is missing"})
    EXPECT_CONTAINS(error, part);

  // A TOML syntax error is a single problem: missing keys are not reported in addition.
  const std::string broken = input_error([] { parse_hardware("[device]\nname = \"x\ncores = 3\n", "mine.toml"); });
  EXPECT_CONTAINS(broken, "mine.toml:2:");
  EXPECT_EQ(broken.find("is missing"), std::string::npos) << broken;

  std::string text = print_hardware(catalogue("a100_80gb"));
  const auto replace = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), from.size(), to);
  };
  replace("ranks = [8, 8192]", "ranks = [8, 12]");
  replace("latency = [3.4, 14.0]", "latency = [3.4]");
  replace("bf16_attained = 271.0", "bf16_attained = 400.0");
  // Lists that are all empty have consistent lengths.
  const std::string no_tier = input_error([] {
    std::string none = print_hardware(catalogue("a100_80gb"));
    const auto begin = none.find("[links]"), end = none.find("[host]");
    none.replace(begin, end - begin, "[links]\ntier = []\nranks = []\nbandwidth = []\nattained = []\nlatency = []\n");
    parse_hardware(none, "mine.toml");
  });
  EXPECT_CONTAINS(no_tier, "links.tier: is empty");
  const std::string rules = input_error([&] { parse_hardware(text, "mine.toml"); });
  for (const char* part :
       {"links.ranks: 12 is not a multiple of the 8 of the previous tier",
        "links.latency: has 1 elements, but links.tier has 2", "bf16_attained: 400 is above bf16_peak"})
    EXPECT_CONTAINS(rules, part);
}

}  // namespace
}  // namespace mcpp
