// The command `plan`, and the files of hardware that it reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json/json.h"
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

class PlanCommand : public testing::Test {
 protected:
  using Words = std::vector<std::string>;
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

TEST_F(PlanCommand, EmitsWhatPretrainTakes) {
  const std::string file = folder_ / "found.toml";
  const Outcome found = run({"--hardware=h200_sxm", "--world_size=256", "--explain", "--emit=" + file});
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"the usual recipe:", "256 x H200 SXM:", "and not:", "the configuration's own layout",
                           "matrix products", "MFU", "HFU"})
    EXPECT_THAT(found.out, HasSubstr(part));
  const Outcome checked = Program({"config", file}, folder_ / "config").wait();
  EXPECT_EQ(checked.code, 0) << checked.err;
  // Only the dataset of the example is missing.
  const Outcome dry = Program({"pretrain", file, "--world_size=256", "--dry_run"}, folder_ / "dry").wait();
  EXPECT_THAT(dry.out, HasSubstr("layout: 256 ranks"));
  EXPECT_THAT(dry.err, AllOf(HasSubstr("dataset /data/corpus: there is no file"), Not(HasSubstr("parallel:"))));
}

// What the best layout keeps elsewhere, and how its ranks send what, is in the sections that pretrain reads.
TEST_F(PlanCommand, EmitsWhereThingsAre) {
  const std::string file = folder_ / "found.toml", kinds = folder_ / "kinds";
  std::filesystem::create_directories(kinds);
  Hardware hardware = catalogue("h100_sxm");
  hardware.host.memory = 64;
  hardware.links.bandwidth = {450, 1, 1, 1};
  write_file_atomic(kinds + "/small_host.toml", print_hardware(hardware));
  const auto emitted = [&](const std::string& kind, const std::string& ranks, const Words& more = {}) {
    Words args{"--hardware=" + kind, "--hardware_folder=" + kinds, "--world_size=" + ranks, "--emit=" + file};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome found = run(args);
    EXPECT_EQ(found.code, 0) << found.err;
    return found.out;
  };
  EXPECT_THAT(emitted("small_host", "8"), AllOf(HasSubstr("optimizer state on disk"),
                                                HasSubstr("before it runs it needs optimizer.offload_folder")));
  EXPECT_THAT(read_text_file(file), HasSubstr("offload = \"file\""));
  EXPECT_THAT(Program({"config", file}, folder_ / "bare").wait().err,
              HasSubstr("optimizer.offload_folder: is missing"));
  const Outcome dry =
      Program({"pretrain", file, "--world_size=8", "--dry_run", "--optimizer.offload_folder=/scratch"}, folder_ / "dry")
          .wait();
  EXPECT_THAT(dry.err, AllOf(HasSubstr("dataset /data/corpus: there is no file"), Not(HasSubstr("offload_folder: "))));

  EXPECT_THAT(emitted("small_host", "64", {"--other_numbers", "--tp=1", "--pp=1"}), HasSubstr("gradients packed"));
  EXPECT_THAT(read_text_file(file), HasSubstr("zero_quantized_gradients = true"));
  EXPECT_THAT(Program({"config", file, "--optimizer.offload_folder=/scratch"}, folder_ / "config").wait().err,
              Not(HasSubstr("zero_")));
}

TEST_F(PlanCommand, PredictsTheConfigurationsOwnLayout) {
  const std::string tp = "--parallel.tensor_model_parallel_size=8";
  const Outcome table = run({"--hardware=h100_sxm", "--world_size=64", "--predict", tp});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("a step of tp 8"), HasSubstr("matrix products"), HasSubstr("of memory"),
                               Not(HasSubstr("layouts are possible"))));
  const Outcome json = run({"--hardware=h100_sxm", "--world_size=64", "--predict", "--json", tp});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json object = parse_json(json.out, "plan");
  double sum = 0;
  for (const auto& part : object["parts_s"]) sum += part.get<double>();
  EXPECT_NEAR(sum / object["step_s"].get<double>(), 1, 1e-9);
  EXPECT_GT(object["memory_bytes"].get<double>(), 1e9);
  expect_refused({"--hardware=h100_sxm", "--predict"}, {"--predict: needs --world_size"});
  expect_refused({"--hardware=tpu_v5p", "--world_size=64", "--predict", tp, "--training.offload_activations=file",
                  "--optimizer.offload_folder=/scratch"},
                 {"a step cannot be predicted: host.nvme_bandwidth: is not known of TPU v5p", "activations on disk"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--json"}, {"--json: is for --predict"});
  expect_refused({"--hardware=h100_sxm", "--world_size=32771", "--predict", tp},
                 {"the configuration's layout cannot run", "32771", "join 24576 at most"});
  expect_refused({"--hardware=h100_sxm", "--world_size=64", "--predict", "--scale=8,16", "--emit=x.toml"},
                 {"--predict and --scale: each is instead of the other", "--emit: is of the best layout"});
}

TEST_F(PlanCommand, DrawsAndTellsWhatHelps) {
  const std::string file = folder_ / "step.svg";
  const Outcome found = run({"--hardware=h100_sxm", "--world_size=128", "--pp=4", "--explain", "--svg=" + file,
                             "--device_hours=50000", "--save_seconds=30"});
  ASSERT_EQ(found.code, 0) << found.err;
  for (const char* part : {"pp 4", "fc1 ", "the same layout would gain by", "twice the bandwidth of nvlink",
                           "failures: 0.06 a day", "a checkpoint has "})
    EXPECT_THAT(found.out, HasSubstr(part));
  EXPECT_THAT(read_text_file(file), AllOf(HasSubstr("<svg"), HasSubstr("rank 3"), Not(HasSubstr("rank 4"))));
}

TEST_F(PlanCommand, Scales) {
  const Outcome strong = run({"--hardware=h100_sxm", "--scale=64,128,131,32768"});
  ASSERT_EQ(strong.code, 0) << strong.err;
  for (const char* part :
       {"strong scaling on H100 SXM", "     128    1024", "by Amdahl's law", "     131    1024  no layout divides",
        "   32768    1024  world_size = 32768, but the links of H100 SXM join 24576 at most"})
    EXPECT_THAT(strong.out, HasSubstr(part));
  const Outcome weak = run({"--hardware=h100_sxm", "--scale=64,128", "--weak"});
  EXPECT_THAT(weak.out, AllOf(HasSubstr("      64    1024"), HasSubstr("     128    2048"), Not(HasSubstr("Amdahl"))));
}

TEST_F(PlanCommand, FindsTheFewestDevicesForADeadline) {
  const Outcome found =
      run({"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=720", "--price=2", "--device_hours=50000"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, AllOf(HasSubstr("tokens in 720.0 hours: "), HasSubstr(" x H100 SXM take "),
                               HasSubstr(" device hours, at 2.00 each ")));
  const Outcome never = run({"--hardware=h100_sxm", "--tokens=1e18", "--deadline_hours=1", "--tp=8"});
  EXPECT_THAT(never.out, HasSubstr("no number of H100 SXM that its links join is enough"));
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--tokens=1e12"},
                 {"--tokens and --deadline_hours: must be given together"});
}

TEST_F(PlanCommand, NothingFits) {
  expect_refused({"--hardware=a100_40gb", "--world_size=4"},
                 {"nothing fits: of ", " layouts of 4 ranks", "needs least", "the smallest world that would do has "});
}

TEST_F(PlanCommand, RefusesBadInputAllAtOnce) {
  expect_refused({"--world_size=8"}, {"hardware"});
  expect_refused({"--hardware=h100_sxm"}, {"--world_size: is missing"});
  expect_refused({"--hardware=h100_sx", "--world_size=8"}, {"unknown hardware \"h100_sx\"", "did you mean h100_sxm?"});
  expect_refused({"--hardware=zzz", "--world_size=8"},
                 {"unknown hardware \"zzz\"", "there are: a100_40gb, a100_80gb", "megatron_cpp plan calibrate --out="});
  expect_refused({"--hardware=here.toml", "--world_size=8"},
                 {"there is no file here.toml", "megatron_cpp plan calibrate --out="});
  expect_refused({"--hardware=cpu_epyc_2_cores", "--scale=1,2"},
                 {"--scale: --hardware=cpu_epyc_2_cores describes 1, 2, 4 ranks apart"});
  expect_refused({"--hardware=cpu_epyc_2_cores", "--tokens=1e9", "--deadline_hours=9"}, {"--tokens: --hardware="});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--emit_hardware=" + (folder_ / "new.toml").string()},
                 {"--emit_hardware: is of the hardware as a run found it, which --from_run names"});
  expect_refused({"--hardware=a100_80gb", "--world_size=64", "--micro_batch_size=7"},
                 {"micro_batch_size = 7 does not divide global_batch_size = 1024"});
  expect_refused({"--hardware=a100_80gb", "--world_size=10000", "--tp=3", "--pp=81"},
                 {"world_size = 10000, but the links of A100 SXM 80GB join 8192 at most",
                  "tensor_model_parallel_size = 3 does not divide num_attention_heads = 64",
                  "pipeline_model_parallel_size = 81 is above num_layers = 80"});
  // Of the arguments, the configuration and the hardware.
  expect_refused({"--hardware=h100_sx", "--world_size=8", "--model.num_layers=-1", "--keep=0"},
                 {"unknown hardware \"h100_sx\"", "num_layers", "keep"});
  expect_refused({"--hardware=h100_sxm", "--from_run=runs/x", "--tokens=5"}, {"--tokens and --deadline_hours"});
  expect_refused({"--hardware=h100_sxm", "--from_run=runs/x"}, {"--from_run=runs/x: there is no file runs/x"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--device_hours=1e-300", "--weak"},
                 {"--device_hours=1e-300: must be 0 or at least 0.01", "--weak: is for --scale"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--device_hours=5", "--save_seconds=1e300"},
                 {"save_seconds", "at most"});
  expect_refused({"--hardware=h100_sxm", "--world_size=7", "--tp=1", "--pp=1"}, {"no layout of 7 ranks divides"});
  expect_refused({"--hardware=h100_sxm", "--tokens=1e30", "--deadline_hours=1e300", "--price=-1"},
                 {"tokens", "deadline_hours", "price", "at most"});
}

// What would be left out of the answer without a word is named, too.
TEST_F(PlanCommand, RefusesWhatHasNoMeaningTogether) {
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--predict", "--tp=8", "--micro_batch_size=1",
                  "--other_numbers", "--price=2", "--save_seconds=3", "--restart_seconds=4"},
                 {"--tp: limits a search", "--micro_batch_size: limits a search", "--other_numbers: limits a search",
                  "--price: is for --tokens", "--save_seconds: is for --device_hours",
                  "--restart_seconds: is for --device_hours"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--scale=8,16"},
                 {"--world_size: is not looked at with --scale"});
  // What no world could do is not looked for in any.
  const std::vector<std::string> impossible{"no layout can be found", "tensor_model_parallel_size = 3 does not divide"};
  expect_refused({"--hardware=h100_sxm", "--scale=8,16", "--tp=3"}, impossible);
  expect_refused({"--hardware=h100_sxm", "--tokens=1e12", "--deadline_hours=9", "--tp=3"}, impossible);
  // Files that cannot be written, before anything is searched.
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--svg=/nowhere/x.svg", "--html=/nowhere/x.html",
                  "--emit=" + folder_.path().string()},
                 {"--svg=/nowhere/x.svg: there is no folder /nowhere", "--html=/nowhere/x.html: there is no folder",
                  ": is a folder"});
}

TEST(HardwareFile, CatalogueIsGood) {
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

// Ranks of a processor share it: what one of two reaches is not what one alone does.
TEST(HardwareFile, MayDescribeSomeNumbersOfRanksApart) {
  const HardwareKind kind = load_hardware("cpu_epyc_2_cores", source_folder() / "configs/hardware");
  EXPECT_TRUE(kind.depends_on_ranks());
  EXPECT_EQ(kind.of(1).device.cores, 2);
  EXPECT_EQ(kind.of(2).device.cores, 1);
  EXPECT_EQ(kind.of(2).links.ranks, std::vector<i64>{2});
  EXPECT_EQ(kind.of(3).links.ranks, std::vector<i64>{4});  // the fewest that are as many
  EXPECT_EQ(kind.of(1000).links.ranks, std::vector<i64>{4});
  EXPECT_EQ(kind.of(4).at_once(4), 2);
  const HardwareKind any = load_hardware("h100_sxm", source_folder() / "configs/hardware");
  EXPECT_FALSE(any.depends_on_ranks());
  EXPECT_EQ(&any.of(1), &any.of(64));
}

TEST(HardwareFile, RefusesBadNumbersOfRanksWithEveryReason) {
  const HardwareKind kind{.by_ranks = {{2, catalogue("cpu_epyc_2_cores")}, {4, catalogue("cpu_epyc_2_cores")}}};
  const std::string good = print_hardware(kind);
  const auto error_of = [&](const std::string& from, const std::string& to, const std::string& before = "") {
    std::string text = before + good;
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    return input_error([&] { parse_hardware(text, "mine.toml"); });
  };
  // What was measured on one rank joins no more.
  const std::string few = error_of("", "");
  EXPECT_CONTAINS(few, "ranks_2.links.ranks: join 1, and [ranks_2] is of 2 ranks");
  EXPECT_CONTAINS(few, "ranks_4.links.ranks: join 1, and [ranks_4] is of 4 ranks");
  EXPECT_CONTAINS(error_of("cores = 2", "cors = 2"), "ranks_2.device.cors: unknown key; did you mean device.cores?");
  EXPECT_CONTAINS(error_of("kernel_gap = 0.02722", "kernel_gap = nan"), "ranks_2.device.kernel_gap: must be finite");
  EXPECT_CONTAINS(error_of("kernel_gap = 0.02722\n", ""), "mine.toml: ranks_2.device.kernel_gap: is missing");
  EXPECT_CONTAINS(error_of("", "", "[host]\nmemory = 1.0\n"),
                  "[host] is of any number of ranks, and [ranks_2.host] of some");
  for (const char* table : {"ranks_0", "ranks_02", "ranks_x", "ranks_", "ranks_99999999999999999999", "ranks_-2"})
    EXPECT_CONTAINS(error_of("", "", str("[", table, ".device]\ncores = 1\n")), str("[", table, "]"));
  EXPECT_CONTAINS(input_error([] { parse_hardware("[ranks_2]\n", "mine.toml"); }),
                  "mine.toml: ranks_2.device.name: is missing");
  EXPECT_CONTAINS(input_error([] { parse_hardware("ranks_2 = 3\n", "mine.toml"); }), "ranks_2");
}

TEST(HardwareFile, RefusesWithEveryReason) {
  const std::string error = input_error([] {
    parse_hardware("[device]\nname = \"x\"\nbf16_peak = -1.0\ncors = 3\n[links]\ntier = [\"a\", \"b\"]\nranks = [8]\n",
                   "mine.toml");
  });
  for (const char* part :
       {"mine.toml:3:1: device.bf16_peak: must be at least 1e-06 and at most",
        "device.cors: unknown key; did you mean device.cores?", "device.memory_bandwidth: is missing",
        "links.bandwidth: is missing", "host.memory: is missing"})
    EXPECT_CONTAINS(error, part);

  // Text that is no TOML is one problem: nobody left the keys out that it would have had.
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
  // Lists that are all empty agree with one another.
  const std::string no_tier = input_error([] {
    std::string none = print_hardware(catalogue("a100_80gb"));
    const auto begin = none.find("[links]"), end = none.find("[host]");
    none.replace(begin, end - begin, "[links]\ntier = []\nranks = []\nbandwidth = []\nattained = []\nlatency = []\n");
    parse_hardware(none, "mine.toml");
  });
  EXPECT_CONTAINS(no_tier, "links.tier: is empty");
  const std::string rules = input_error([&] { parse_hardware(text, "mine.toml"); });
  for (const char* part :
       {"links.ranks: 12 is no multiple of the 8 of the tier before",
        "links.latency: has 1 elements, but links.tier has 2", "bf16_attained: 400 is above bf16_peak"})
    EXPECT_CONTAINS(rules, part);
}

}  // namespace
}  // namespace mcpp
