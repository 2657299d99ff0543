// The search for layouts, and the command around it.
#include "megatron_cpp/setup/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/json/json.h"
#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/placement.h"
#include "plan/layout_memory.h"
#include "plan/layouts.h"
#include "plan/search.h"
#include "plan/stage_layouts.h"
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

constexpr double kUsable = 0.92;

SearchLimits limits_for(const Hardware& hardware, i64 world_size) {
  return {.world_size = world_size, .memory_bytes = kUsable * hardware.memory_bytes()};
}

/// CPU time of this thread, whatever else the machine does.
double seconds_of(const std::function<void()>& f) {
  const auto now = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double begin = now();
  f();
  return now() - begin;
}

/// Of a row of the paper, with so many chunks, which it leaves open; nothing where there is no such layout.
std::vector<Layout> published_layout(const GptRow& row, i64 chunks) {
  const Layout layout{.world_size = row.gpus,
                      .tp = row.tp,
                      .pp = row.pp,
                      .schedule = chunks > 1 ? ScheduleKind::Interleaved : ScheduleKind::OneFOneB,
                      .chunks = chunks,
                      .recompute = {.granularity = Recompute::Granularity::Full}};
  const bool is_possible = row.layers % (row.pp * chunks) == 0 &&
                           (chunks == 1 || (row.pp > 1 && layout.microbatches(row.batch) % row.pp == 0));
  return is_possible ? std::vector{layout} : std::vector<Layout>{};
}

/// Searches within 10 seconds, and finds what is at least as fast as each of `published`.
void expect_at_least_as_fast(const Hardware& hardware, const std::string& name, const Workload& work,
                             const std::vector<Layout>& published) {
  const Implementation program;
  const i64 gpus = published.front().world_size;
  SearchResult result;
  const double seconds =
      seconds_of([&] { result = search_layouts(hardware, program, work, limits_for(hardware, gpus)); });
  EXPECT_LT(seconds, 10) << name;
  ASSERT_FALSE(result.best.empty()) << name;
  const Candidate& best = result.best.front();
  for (const Layout& layout : published) {
    const double theirs = step_time({hardware, program, work, layout}).seconds;
    EXPECT_LE(best.time.seconds, theirs) << name << ": " << layout.describe();
    std::printf("%-8s %5d GPUs: published %8.3f s, found %8.3f s (%s), %d layouts in %.2f s\n", name.c_str(),
                static_cast<int>(gpus), theirs, best.time.seconds, best.layout.describe().c_str(),
                static_cast<int>(result.possible), seconds);
  }
}

TEST(Search, IsAtLeastAsFastAsMegatronsLayouts) {
  const Hardware hardware = catalogue("a100_80gb");
  for (const GptRow& row : kWeakScaling) {
    std::vector<Layout> layouts;
    for (const i64 chunks : {1, 2, 3})
      for (const Layout& layout : published_layout(row, chunks)) layouts.push_back(layout);
    expect_at_least_as_fast(hardware, str(row.billions, " B"),
                            {.model = gpt(row.layers, row.hidden, row.heads), .global_batch_size = row.batch}, layouts);
  }
}

TEST(Search, IsAtLeastAsFastAsLlamas) {
  const Hardware hardware = catalogue("h100_sxm");
  for (const auto& [gpus, cp, sequence, batch] :
       {std::array<i64, 4>{8192, 1, 8192, 2048}, {16384, 1, 8192, 2048}, {16384, 16, 131072, 128}})
    expect_at_least_as_fast(hardware, "405B",
                            {.model = llama(126, 16384, 53248, 128, 8, 128256, sequence), .global_batch_size = batch},
                            {{.world_size = gpus,
                              .tp = 8,
                              .cp = cp,
                              .pp = 16,
                              .sequence_parallel = true,
                              .cp_comm_type = CpCommType::AllGather,
                              .schedule = ScheduleKind::Interleaved,
                              .chunks = 8,
                              .stages = "E|(t|)*126L",
                              .zero_stage = 1}});
}

// A bound that were above what it bounds would hide the best; and the order must not depend on anything but the input.
TEST(Search, LosesNothingAndIsTheSameEveryTime) {
  const Hardware hardware = catalogue("h100_sxm");
  const Implementation program;
  const Workload work{.model = llama(32, 4096, 14336, 32, 8, 128256, 8192), .global_batch_size = 256};
  SearchLimits limits = limits_for(hardware, 64);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_EQ(result.best.size(), 5);
  LayoutMemory memory(work);
  double best = 1e30;
  i64 fitting = 0;
  for_each_layout(hardware, work, limits, [&](const Layout& layout) {
    if (memory.most(layout).total() > limits.memory_bytes) return;
    const Job job{hardware, program, work, layout};
    const double seconds = step_time(job).seconds;
    EXPECT_LE(least_seconds(job), seconds * (1 + 1e-12)) << layout.describe();
    best = std::min(best, seconds);
    ++fitting;
  });
  EXPECT_EQ(result.fitting, fitting);
  EXPECT_EQ(result.best.front().time.seconds, best);
  const SearchResult again = search_layouts(hardware, program, work, limits);
  for (std::size_t i = 0; i < result.best.size(); ++i)
    EXPECT_EQ(result.best[i].layout.describe(), again.best[i].layout.describe());
}

TEST(Search, TellsWhyOthersLose) {
  const Hardware hardware = catalogue("h100_sxm");
  const Implementation program;
  const Workload work{.model = llama(80, 8192, 28672, 64, 8, 128256, 8192), .global_batch_size = 1024};
  const SearchResult result = search_layouts(hardware, program, work, limits_for(hardware, 512));
  const auto reason = [&](const std::string& kind) -> std::string {
    for (const Alternative& other : result.alternatives)
      if (other.kind == kind) return other.reason;
    return "";
  };
  EXPECT_THAT(reason("tp 16"), HasSubstr("tensor parallelism leaves the nvlink domain of 8 for rack"));
  EXPECT_THAT(reason("recompute full"), HasSubstr("more products are computed again"));
}

// The memory of a layout is what the dry run of its configuration says, whatever the search leaves out to be quick.
void expect_memory_of_dry_run(const std::string& config_name, int every, int at_least) {
  const Hardware hardware = catalogue("h100_sxm");
  const Config base = load_config(source_folder() / "configs" / config_name);
  const Workload work = workload_of(base);
  LayoutMemory memory(work);
  int compared = 0;
  for_each_layout(hardware, work, limits_for(hardware, 32), [&](Layout layout) {
    if (++compared % every != 0) return;  // a few hundred of all
    layout.states_place = static_cast<StatesPlace>(compared / every % 3);
    const Config config = with_layout(base, layout);
    ASSERT_THAT(layout_problems(config, 32), testing::IsEmpty()) << layout.describe();
    double most = 0;
    for (const MemoryEstimate& rank : estimate_memory_by_stage(config, 32)) most = std::max(most, rank.total());
    EXPECT_NEAR(memory.most(layout).total() / most, 1, 1e-9) << layout.describe();
    EXPECT_EQ(layout_of(config, 32).describe(), layout.describe());
  });
  EXPECT_GT(compared, at_least);
}

TEST(Search, KnowsTheMemoryOfTheDryRun) {
  expect_memory_of_dry_run("llama_8b.toml", 37, 1000);
  expect_memory_of_dry_run("mixtral_8x7b.toml", 91, 5000);
}

TEST(Search, SharesExperts) {
  const Hardware hardware = catalogue("h100_sxm");
  const Implementation program;
  const Workload work = workload_of(load_config(source_folder() / "configs/mixtral_8x7b.toml"));
  SearchLimits limits = limits_for(hardware, 64);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_FALSE(result.best.empty());
  const double best = result.best.front().time.seconds;
  for (const i64 ep : {1, 2, 4, 8}) {
    limits.expert_model_parallel_size = ep;
    const SearchResult of_size = search_layouts(hardware, program, work, limits);
    ASSERT_FALSE(of_size.best.empty()) << ep;
    EXPECT_EQ(of_size.best.front().layout.ep, ep);
    EXPECT_GE(of_size.best.front().time.seconds, best) << ep;
  }
  limits.expert_model_parallel_size = 3;
  const std::string error = input_error([&] { search_layouts(hardware, program, work, limits); });
  EXPECT_CONTAINS(error, "expert_model_parallel_size = 3 does not divide num_experts = 8");
}

// States that have no place on the devices go to the host, and to its disks when it has not the memory either; not
// where nobody knows how fast these are.
TEST(Search, PutsStatesElsewhereWhereNothingElseFits) {
  Hardware hardware = catalogue("h100_sxm");
  const Implementation program;
  const Workload work = workload_of(load_config(source_folder() / "configs/llama_70b.toml"));
  const auto found = [&](i64 world) {
    return search_layouts(hardware, program, work, limits_for(hardware, world)).best;
  };
  const auto place = [&](i64 world) { return found(world).front().layout.states_place; };
  EXPECT_EQ(place(64), StatesPlace::Device);
  ASSERT_FALSE(found(8).empty());
  EXPECT_EQ(place(8), StatesPlace::Host);
  const Candidate on_host = found(8).front();
  EXPECT_GT(on_host.memory.elsewhere, 0.8 * 70e9 * 12 / 8);
  EXPECT_LE(on_host.memory.elsewhere, 1e9 * hardware.host.memory);
  hardware.host.memory = 64;
  EXPECT_EQ(place(8), StatesPlace::Disk);
  const Candidate on_disk = found(8).front();
  EXPECT_GT(on_disk.time.optimizer, 2 * 12 * 70e9 / 8 / 3e9);  // read and written
  EXPECT_GT(on_disk.time.optimizer, on_host.time.optimizer);
  hardware.host.nvme_bandwidth = 0;
  EXPECT_TRUE(found(8).empty());
  hardware.host.memory = 256;
  hardware.host.memory_bandwidth = 0;
  EXPECT_TRUE(found(8).empty());
}

// An output that computes as much as layers do is given to a stage with fewer of them.
TEST(Search, DealsLayersOutUnevenly) {
  const ModelConfig m = llama(32, 4096, 14336, 32, 8, 128256, 8192);  // the output counts as two layers
  EXPECT_THAT(stage_layouts(m, 4), testing::ElementsAre("", "Et*8|(t*9|)*2t*6L"));
  EXPECT_THAT(stage_layouts(gpt(10, 1024, 16), 4), testing::ElementsAre(HasSubstr("E")));  // does not divide
  EXPECT_THAT(stage_layouts(llama(126, 16384, 53248, 128, 8, 128256, 8192), 128), testing::ElementsAre("E|(t|)*126L"));
  EXPECT_THAT(stage_layouts(gpt(4, 1024, 16), 8), testing::IsEmpty());
  const Hardware hardware = catalogue("h100_sxm");
  const Implementation program;
  const Workload work{.model = m, .global_batch_size = 64};
  const auto seconds = [&](const std::string& stages) {
    return step_time({hardware, program, work, {.world_size = 8, .tp = 2, .pp = 4, .stages = stages}}).seconds;
  };
  EXPECT_LT(seconds("Et*8|(t*9|)*2t*6L"), 0.97 * seconds(""));
}

class PlanCommand : public testing::Test {
 protected:
  Outcome run(std::vector<std::string> args) const {
    args.insert(args.begin(), {"plan", (source_folder() / "configs/llama_70b.toml").string(),
                               "--hardware_folder=" + (source_folder() / "configs/hardware").string()});
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
  const Outcome strong = run({"--hardware=h100_sxm", "--scale=64,128,131"});
  ASSERT_EQ(strong.code, 0) << strong.err;
  for (const char* part :
       {"strong scaling on H100 SXM", "     128    1024", "by Amdahl's law", "     131    1024  no layout divides"})
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
  expect_refused({"--hardware=zzz", "--world_size=8"}, {"unknown hardware \"zzz\"", "there are: a100_40gb, a100_80gb"});
  expect_refused({"--hardware=a100_80gb", "--world_size=10000", "--tp=3", "--pp=81"},
                 {"world_size = 10000, but the links of A100 SXM 80GB join 8192 at most",
                  "tensor_model_parallel_size = 3 does not divide num_attention_heads = 64",
                  "pipeline_model_parallel_size = 81 is above num_layers = 80"});
  // Of the arguments, the configuration and the hardware.
  expect_refused({"--hardware=h100_sx", "--world_size=8", "--model.num_layers=-1", "--keep=0"},
                 {"unknown hardware \"h100_sx\"", "num_layers", "keep"});
  expect_refused({"--hardware=h100_sxm", "--from_run=runs/x", "--tokens=5"},
                 {"--from_run: needs --world_size", "--tokens and --deadline_hours"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--device_hours=1e-300", "--weak"},
                 {"--device_hours=1e-300: must be 0 or at least 0.01", "--weak: is for --scale"});
  expect_refused({"--hardware=h100_sxm", "--world_size=8", "--device_hours=5", "--save_seconds=1e300"},
                 {"save_seconds", "at most"});
  expect_refused({"--hardware=h100_sxm", "--world_size=7", "--tp=1", "--pp=1"}, {"no layout of 7 ranks divides"});
}

TEST(HardwareFile, CatalogueIsGood) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "configs/hardware")) {
    const Hardware hardware = catalogue(entry.path().stem());
    EXPECT_GT(hardware.device.bf16_peak, 100) << entry.path();
    EXPECT_EQ(print_hardware(parse_hardware(print_hardware(hardware), "printed")), print_hardware(hardware));
    ++files;
  }
  EXPECT_GE(files, 9);
}

TEST(HardwareFile, RefusesWithEveryReason) {
  const std::string error = input_error([] {
    parse_hardware("[device]\nname = \"x\"\nbf16_peak = -1.0\ncors = 3\n[links]\ntier = [\"a\", \"b\"]\nranks = [8]\n",
                   "mine.toml");
  });
  for (const char* part :
       {"mine.toml:3:1: device.bf16_peak: must be greater than 0",
        "device.cors: unknown key; did you mean device.cores?", "device.memory_bandwidth: is missing",
        "links.bandwidth: is missing", "host.memory: is missing"})
    EXPECT_CONTAINS(error, part);

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
