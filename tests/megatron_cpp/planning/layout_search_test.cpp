// Tests of the layout search.
#include "megatron_cpp/setup/layout_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/run_summary.h"
#include "parallel/layout_rules.h"
#include "plan/layout_memory.h"
#include "plan/layouts.h"
#include "plan/scaling/scaling.h"
#include "plan/search.h"
#include "tests/support/errors.h"
#include "tests/support/layouts/every_layout.h"
#include "tests/support/published_runs.h"

namespace mcpp {
namespace {

using testing::HasSubstr;
using namespace test;

constexpr double kUsable = 0.92;

SearchLimits limits_for(const Hardware& hardware, i64 world_size) {
  return {.world_size = world_size, .memory_bytes = kUsable * hardware.memory_bytes()};
}

/// Returns the CPU time that `f` takes on this thread, independently of the load of the host.
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

/// Returns the layout of a row of the paper with this number of chunks, which the paper leaves open; nothing if it is
/// impossible.
std::vector<Layout> published_layout(const GptRow& row, i64 chunks) {
  const Layout layout{.tp = row.tp,
                      .pp = row.pp,
                      .dp = row.gpus / (row.tp * row.pp),
                      .schedule = chunks > 1 ? ScheduleKind::Interleaved : ScheduleKind::OneFOneB,
                      .chunks = chunks,
                      .recompute = {.granularity = Recompute::Granularity::Full}};
  const bool is_possible = row.layers % (row.pp * chunks) == 0 &&
                           (chunks == 1 || (row.pp > 1 && layout.microbatches(row.batch) % row.pp == 0));
  return is_possible ? std::vector{layout} : std::vector<Layout>{};
}

/// Expects that a search finds, within 10 seconds, a layout that is at least as fast as each of `published`.
void expect_at_least_as_fast(const Hardware& hardware, const std::string& name, const Workload& work,
                             const std::vector<Layout>& published) {
  const KernelTraits program;
  const i64 gpus = published.front().world_size();
  SearchResult result;
  const double seconds =
      seconds_of([&] { result = search_layouts(hardware, program, work, limits_for(hardware, gpus)); });
  EXPECT_LT(seconds, 10) << name;
  ASSERT_FALSE(result.best.empty()) << name;
  const Candidate& best = result.best.front();
  for (const Layout& layout : published) {
    const double published_seconds = step_time({hardware, program, work, layout}).seconds;
    EXPECT_LE(best.time.seconds, published_seconds) << name << ": " << layout.describe();
    std::printf("%-8s %5d GPUs: published %8.3f s, found %8.3f s (%s), %d layouts in %.2f s\n", name.c_str(),
                static_cast<int>(gpus), published_seconds, best.time.seconds, best.layout.describe().c_str(),
                static_cast<int>(result.possible), seconds);
  }
}

TEST(LayoutSearchTest, FindsLayoutsAtLeastAsFastAsMegatron) {
  const Hardware hardware = catalogue("a100_80gb");
  for (const GptRow& row : kWeakScaling) {
    std::vector<Layout> layouts;
    for (const i64 chunks : {1, 2, 3})
      for (const Layout& layout : published_layout(row, chunks)) layouts.push_back(layout);
    expect_at_least_as_fast(hardware, str(row.billions, " B"),
                            {.model = gpt(row.layers, row.hidden, row.heads), .global_batch_size = row.batch}, layouts);
  }
}

TEST(LayoutSearchTest, FindsLayoutsAtLeastAsFastAsLlama) {
  const Hardware hardware = catalogue("h100_sxm");
  for (const LlamaRow& row : kLlama405B) expect_at_least_as_fast(hardware, "405B", row.work(), {row.layout()});
}

/// Compares `best`, sorted by memory, with the same number of all layouts.
void expect_lowest_memory(const std::vector<Candidate>& best, const EveryLayout& all) {
  auto expected = all.by_memory.begin();
  for (const Candidate& candidate : best) {
    EXPECT_EQ(candidate.memory.total(), expected->first) << candidate.layout.describe();
    EXPECT_NEAR(candidate.time.seconds / expected->second, 1, 1e-9) << candidate.layout.describe();
    const auto [bytes, seconds] = *expected;
    while (expected != all.by_memory.end() && expected->first == bytes && expected->second < seconds * (1 + 1e-9))
      ++expected;
  }
}

// An incorrect lower bound would hide the best layout. The order must depend only on the input.
TEST(LayoutSearchTest, MatchesExhaustiveSearchAndIsDeterministic) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work{.model = llama(16, 4096, 14336, 32, 8, 128256, 8192), .global_batch_size = 64};
  SearchLimits limits = limits_for(hardware, 32);  // over three tiers of links
  const EveryLayout all(hardware, work, limits);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_EQ(result.best.size(), 5);
  EXPECT_LT(result.fitting, result.possible);
  EXPECT_EQ(result.fitting, all.fitting);
  EXPECT_GT(all.offloaded, 0);
  EXPECT_GT(all.partly_recomputed, 0);
  EXPECT_EQ(result.best.front().time.seconds, all.best_seconds);
  const SearchResult again = search_layouts(hardware, program, work, limits);
  for (std::size_t i = 0; i < result.best.size(); ++i)
    EXPECT_EQ(result.best[i].layout.describe(), again.best[i].layout.describe());

  limits.objective = Objective::Memory;
  limits.keep = 12;
  const SearchResult small = search_layouts(hardware, program, work, limits);
  EXPECT_EQ(small.fitting, all.fitting);
  EXPECT_LT(small.simulated, small.fitting / 10);
  ASSERT_EQ(small.best.size(), 12);
  expect_lowest_memory(small.best, all);
  EXPECT_LT(small.best.front().memory.total(), result.best.front().memory.total());
  // The reported layout of a kind is the one that needs the least memory.
  for (const Alternative& other : small.alternatives) {
    if (other.kind != "ZeRO 0") continue;
    EXPECT_THAT(other.reason, HasSubstr(" % more memory, most of it "));
    EXPECT_GT(other.candidate.memory.total(), small.best.front().memory.total());
  }
}

// If some states must be on the host, all of them are offloaded, because the objective is minimum device memory.
TEST(LayoutSearchTest, OffloadsAllStatesWhenObjectiveIsMemory) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work = make_workload(load_config(source_folder() / "configs/llama_70b.toml"));
  SearchLimits limits = limits_for(hardware, 16);
  const SearchResult fast = search_layouts(hardware, program, work, limits);
  limits.objective = Objective::Memory;
  const SearchResult small = search_layouts(hardware, program, work, limits);
  ASSERT_FALSE(small.best.empty());
  const Layout& layout = small.best.front().layout;
  EXPECT_EQ(layout.states_tier, OffloadTier::Host);
  EXPECT_EQ(layout.offloaded_state_fraction, 1);
  EXPECT_EQ(layout.activations_tier, OffloadTier::Device);
  EXPECT_LT(small.best.front().memory.total(), 0.8 * fast.best.front().memory.total());
}

/// The sizes of a layout: tp, cp, pp, micro batch size.
using Sizes = std::tuple<i64, i64, i64, i64>;

// The search tries exactly the sizes that the rules allow, including sizes that are not powers of two.
TEST(LayoutSearchTest, TriesEveryAllowedSize) {
  const Hardware hardware = catalogue("h100_sxm");
  for (const auto& [world, sequence] : {std::pair<i64, i64>{12, 24576}, {6, 9000}, {24, 24576}}) {
    const Workload work{.model = llama(24, 1536, 6144, 12, 12, 49152, sequence), .global_batch_size = 48};
    const auto follows_rules = [&, world = world](const Sizes& sizes) {
      const auto [tp, cp, pp, micro] = sizes;
      const Layout layout{.tp = tp, .cp = cp, .pp = pp, .micro_batch_size = micro};
      return layout_conflicts(model_sizes(work.model), layout, world, 48).empty();
    };
    std::set<Sizes> expected, found;
    for (i64 tp = 1; tp <= world; ++tp)
      for (i64 cp = 1; cp <= std::min(world, sequence / 2048); ++cp)
        for (i64 pp = 1; pp <= world; ++pp)
          for (i64 micro = 1; micro <= 8; ++micro)
            if (follows_rules({tp, cp, pp, micro})) expected.insert({tp, cp, pp, micro});
    for_each_layout(hardware, work, limits_for(hardware, world), [&](const Layout& l) {
      if (l.stages.empty()) found.insert({l.tp, l.cp, l.pp, l.micro_batch_size});
      if (l.sequence_parallel) {
        EXPECT_EQ(sequence % (l.tp * l.cp), 0) << l.describe();
      }
    });
    EXPECT_EQ(found, expected) << world;
    EXPECT_GT(expected.size(), 30);
  }
}

// Eight short samples do not keep a device busy.
TEST(LayoutSearchTest, TriesLargerMicrobatchesForShortSamples) {
  const Hardware hardware = catalogue("h100_sxm");
  const auto sizes = [&](i64 sequence) {
    const Workload work{.model = llama(12, 768, 3072, 12, 12, 49152, sequence), .global_batch_size = 768};
    std::set<i64> found;
    for_each_layout(hardware, work, limits_for(hardware, 1),
                    [&](const Layout& l) { found.insert(l.micro_batch_size); });
    return found;
  };
  EXPECT_THAT(sizes(8192), testing::ElementsAre(1, 2, 3, 4, 6, 8));
  EXPECT_THAT(sizes(1024), testing::ElementsAre(1, 2, 3, 4, 6, 8, 12, 16, 24, 32));
}

// Experts may also be sharded over only some of the tensor-parallel ranks.
TEST(LayoutSearchTest, TriesEveryExpertTensorParallelSize) {
  const Hardware hardware = catalogue("h100_sxm");
  const Workload work = make_workload(load_config(source_folder() / "configs/mixtral_8x7b.toml"));
  SearchLimits limits = limits_for(hardware, 16);
  limits.tp = 4;
  std::set<i64> found;
  for_each_layout(hardware, work, limits, [&](const Layout& l) { found.insert(l.etp); });
  EXPECT_THAT(found, testing::ElementsAre(1, 2, 4));
}

// No smaller world size that the search tries meets the deadline, and the limits' multiples are respected.
TEST(LayoutSearchTest, FindsMinDevicesForDeadline) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work{.model = llama(12, 1536, 6144, 12, 12, 49152, 4096), .global_batch_size = 192};
  SearchLimits limits = limits_for(hardware, 1);
  const Deadline deadline{.tokens = 3e10, .hours = 24};
  const auto hours = [&](i64 world) {
    SearchLimits of_world = limits;
    of_world.world_size = world;
    const SearchResult found = search_layouts(hardware, program, work, of_world);
    return deadline.tokens / work.tokens() * found.best.front().time.seconds / 3600;
  };
  const MinDevices any = find_min_devices(hardware, program, work, limits, deadline, {});
  ASSERT_TRUE(any.smallest);
  EXPECT_LE(hours(any.smallest->world_size), 24);
  EXPECT_NEAR(any.smallest->cost.hours / hours(any.smallest->world_size), 1, 1e-9);
  for (i64 world = 1; world < any.smallest->world_size; world *= 2) EXPECT_GT(hours(world), 24) << world;
  limits.tp = 3;
  const MinDevices of_three = find_min_devices(hardware, program, work, limits, deadline, {});
  ASSERT_TRUE(of_three.smallest);
  EXPECT_EQ(of_three.smallest->world_size % 3, 0);
  EXPECT_GE(of_three.smallest->world_size, any.smallest->world_size);
  // If no world size meets the deadline, the error names the fastest one, or the time on all devices.
  const MinDevices late = find_min_devices(hardware, program, work, limits, {.tokens = 3e10, .hours = 1e-2}, {});
  EXPECT_FALSE(late.smallest);
  EXPECT_TRUE(late.fastest.has_value() || late.min_hours > 1e-2);
}

TEST(LayoutSearchTest, ExplainsWhyAlternativesAreSlower) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work{.model = llama(80, 8192, 28672, 64, 8, 128256, 8192), .global_batch_size = 1024};
  const SearchResult result = search_layouts(hardware, program, work, limits_for(hardware, 512));
  const auto reason = [&](const std::string& kind) -> std::string {
    for (const Alternative& other : result.alternatives)
      if (other.kind == kind) return other.reason;
    return "";
  };
  EXPECT_THAT(reason("tp 16"), HasSubstr("tensor parallelism exceeds the nvlink domain of 8 ranks and uses rack"));
  EXPECT_THAT(reason("recompute full"), HasSubstr("more GEMMs are recomputed"));
}

// Expects that the memory of a layout equals the memory in a dry run of its configuration.
void expect_memory_of_dry_run(const std::string& config_name, int every, int at_least) {
  const Hardware hardware = catalogue("h100_sxm");
  const Config base = load_config(source_folder() / "configs" / config_name);
  const Workload work = make_workload(base);
  LayoutMemory memory(work);
  int compared = 0;
  std::set<int> roundings;
  SearchLimits limits = limits_for(hardware, 32);
  limits.allow_lossy_comm = true;
  for_each_layout(hardware, work, limits, [&](Layout layout) {
    if (++compared % every != 0) return;  // compares some hundreds of the layouts
    const auto tier = [&](int i) { return static_cast<OffloadTier>(compared / every / i % 3); };
    layout.states_tier = tier(1);
    if (layout.zero_stage == 3) layout.params_tier = tier(3);
    layout.activations_tier = tier(9);
    Config config = apply_layout(base, layout);
    if (layout.uses(OffloadTier::File)) config.optimizer.offload_folder = "/scratch";
    EXPECT_THAT(config.conflicts(), testing::IsEmpty()) << layout.describe();
    roundings.insert(layout.formats.quantized_weights + 2 * layout.formats.has_bf16_grads() +
                     4 * static_cast<int>(layout.formats.grad_reduce_format()));
    ASSERT_THAT(layout_problems(config, 32), testing::IsEmpty()) << layout.describe();
    double peak = 0;
    for (const MemoryEstimate& rank : estimate_memory_by_stage(config, 32)) peak = std::max(peak, rank.total());
    EXPECT_NEAR(memory.peak(layout).total() / peak, 1, 1e-9) << layout.describe();
    EXPECT_EQ(layout_of(config, 32).describe(), layout.describe());
  });
  EXPECT_GT(compared, at_least);
  EXPECT_EQ(roundings.size(), 2 * 5);  // gradients kept in bf16 are not also sent in bf16
}

TEST(LayoutSearchTest, MemoryMatchesDryRun) {
  expect_memory_of_dry_run("llama_8b.toml", 37, 1000);
  expect_memory_of_dry_run("mixtral_8x7b.toml", 91, 5000);
}

TEST(LayoutSearchTest, TriesExpertParallelism) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work = make_workload(load_config(source_folder() / "configs/mixtral_8x7b.toml"));
  SearchLimits limits = limits_for(hardware, 64);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_FALSE(result.best.empty());
  const double best = result.best.front().time.seconds;
  for (const i64 ep : {1, 2, 4, 8}) {
    limits.ep = ep;
    const SearchResult of_size = search_layouts(hardware, program, work, limits);
    ASSERT_FALSE(of_size.best.empty()) << ep;
    EXPECT_EQ(of_size.best.front().layout.ep, ep);
    EXPECT_GE(of_size.best.front().time.seconds, best) << ep;
  }
  limits.ep = 3;
  const std::string error = input_error([&] { search_layouts(hardware, program, work, limits); });
  EXPECT_CONTAINS(error, "expert_model_parallel_size = 3 does not divide num_experts = 8");
}

// States that do not fit on the devices go to the host, and to its disks if it lacks memory, but only if the hardware
// file states their speeds.
TEST(LayoutSearchTest, OffloadsStatesOnlyWhenNothingElseFits) {
  Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work = make_workload(load_config(source_folder() / "configs/llama_70b.toml"));
  const auto found = [&](i64 world) {
    return search_layouts(hardware, program, work, limits_for(hardware, world)).best;
  };
  const auto place = [&](i64 world) { return found(world).front().layout.states_tier; };
  EXPECT_EQ(place(64), OffloadTier::Device);
  ASSERT_FALSE(found(8).empty());
  EXPECT_EQ(place(8), OffloadTier::Host);
  const Candidate on_host = found(8).front();
  EXPECT_GT(on_host.memory.offloaded, 0.8 * 70e9 * 12 / 8);
  EXPECT_LE(on_host.memory.offloaded, 1e9 * hardware.host.memory);
  hardware.host.memory = 64;
  EXPECT_EQ(place(8), OffloadTier::File);
  const Candidate on_disk = found(8).front();
  EXPECT_GT(on_disk.time.optimizer, 2 * 12 * 70e9 / 8 / 3e9);  // read and written
  EXPECT_GT(on_disk.time.optimizer, on_host.time.optimizer);
  hardware.host.nvme_bandwidth = 0;
  EXPECT_TRUE(found(8).empty());
  hardware.host.memory = 256;
  hardware.host.memory_bandwidth = 0;
  EXPECT_TRUE(found(8).empty());
}

// Activations go to the host if a layout fits only then, and weights if states alone are not enough. The program
// accepts the layouts that are found.
TEST(LayoutSearchTest, OffloadsActivationsAndWeightsWhenNecessary) {
  Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  // Samples are so long that the inputs of layers exceed the states of their weights.
  const Workload longer{.model = llama(64, 1024, 3584, 8, 8, 2048, 1 << 17), .global_batch_size = 1};
  const double inputs = 64.0 * (1 << 17) * 1024 * 2;
  SearchLimits limits = limits_for(hardware, 1);
  limits.memory_bytes = 30e9;
  hardware.host.memory = 4000;
  const SearchResult on_host = search_layouts(hardware, program, longer, limits);
  ASSERT_FALSE(on_host.best.empty());
  EXPECT_EQ(on_host.best.front().layout.activations_tier, OffloadTier::Host) << on_host.best.front().layout.describe();
  EXPECT_GE(on_host.best.front().memory.offloaded_activations, inputs);
  EXPECT_GT(on_host.best.front().time.work.offloaded, 0);
  hardware.host.memory = 8;
  const SearchResult on_disk = search_layouts(hardware, program, longer, limits);
  ASSERT_FALSE(on_disk.best.empty());
  EXPECT_EQ(on_disk.best.front().layout.activations_tier, OffloadTier::File) << on_disk.best.front().layout.describe();
  EXPECT_GT(on_disk.best.front().time.seconds, on_host.best.front().time.seconds);
  hardware.host.memory = 4000;

  const Workload large = make_workload(load_config(source_folder() / "configs/llama_8b.toml"));
  limits = limits_for(hardware, 1);
  limits.memory_bytes = 46e9;  // gradients take 32 GB, and weights another 16
  const SearchResult found = search_layouts(hardware, program, large, limits);
  ASSERT_FALSE(found.best.empty());
  EXPECT_EQ(found.best.front().layout.params_tier, OffloadTier::Host) << found.best.front().layout.describe();
  EXPECT_NE(found.best.front().layout.states_tier, OffloadTier::Device);
  EXPECT_EQ(found.best.front().layout.zero_stage, 3);
}

// Layouts with lossy communication are mentioned, but only searched on request.
TEST(LayoutSearchTest, TriesLossyCommunicationOnlyOnRequest) {
  Hardware hardware = catalogue("h100_sxm");
  hardware.links.bandwidth = {450, 2, 2, 2};
  const KernelTraits program;
  const Workload work{.model = llama(32, 4096, 14336, 32, 8, 128256, 8192), .global_batch_size = 64};
  SearchLimits limits = limits_for(hardware, 64);
  limits.pp = 1;  // makes gradients cross slow links
  const SearchResult exact = search_layouts(hardware, program, work, limits);
  for (const Candidate& candidate : exact.best) EXPECT_EQ(candidate.layout.formats, CommFormats{});
  const auto alternative = std::ranges::find(exact.alternatives, "lossy formats", &Alternative::kind);
  ASSERT_NE(alternative, exact.alternatives.end());
  EXPECT_THAT(alternative->reason, HasSubstr("% faster, as less is sent; --allow_lossy_comm considers such formats"));
  limits.allow_lossy_comm = true;
  const SearchResult rounded = search_layouts(hardware, program, work, limits);
  EXPECT_NE(rounded.best.front().layout.formats, CommFormats{});
  EXPECT_LE(rounded.best.front().time.seconds, alternative->candidate.time.seconds);
  EXPECT_LT(rounded.best.front().time.seconds, 0.9 * exact.best.front().time.seconds);
  // Settings of the configuration apply to every layout.
  Workload packed = work;
  packed.base.formats.quantized_weights = true;
  for (const Candidate& candidate : search_layouts(hardware, program, packed, limits_for(hardware, 64)).best) {
    EXPECT_TRUE(candidate.layout.formats.quantized_weights) << candidate.layout.describe();
    EXPECT_GE(candidate.layout.zero_stage, 1);
  }
}

// If the weights are sharded over a slow network, nodes keep secondary shards if they have the memory.
TEST(LayoutSearchTest, UsesSecondaryShardsWhenLinksAreSlow) {
  Hardware hardware = catalogue("h100_sxm");
  hardware.links.bandwidth = {450, 2, 2, 2};
  const KernelTraits program;
  const Workload work{.model = llama(32, 4096, 14336, 32, 8, 128256, 8192), .global_batch_size = 64};
  const auto seconds = [&](i64 node_ranks) {
    const Layout layout{.dp = 32,
                        .zero_stage = 3,
                        .node_ranks = node_ranks,
                        .recompute = {.granularity = Recompute::Granularity::Full}};
    return step_time({hardware, program, work, layout}).seconds;
  };
  EXPECT_LT(seconds(8), 0.9 * seconds(1));
  bool has_copies = false;
  for_each_layout(hardware, work, limits_for(hardware, 32), [&](const Layout& layout) {
    has_copies |= layout.node_ranks == 8;
    EXPECT_TRUE(layout.node_ranks == 1 || (layout.zero_stage == 3 && layout.instances == 1)) << layout.describe();
  });
  EXPECT_TRUE(has_copies);
}

// If nothing fits, the error lists what was tried and which lossy options would help.
TEST(LayoutSearchTest, ErrorNamesAttemptedSettings) {
  Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work = make_workload(load_config(source_folder() / "configs/llama_8b.toml"));
  SearchLimits limits = limits_for(hardware, 1);
  const auto error_with = [&](double bytes) {
    limits.memory_bytes = bytes;
    const SearchResult result = search_layouts(hardware, program, work, limits);
    EXPECT_TRUE(result.best.empty());
    return input_error([&] { fail_no_layout_fits(result, hardware, work, limits); });
  };
  const std::string error = error_with(30e9);
  EXPECT_CONTAINS(error, "even with optimizer state, weights and activations in host memory and on disks");
  EXPECT_CONTAINS(error, "with optimizer.main_grads_dtype = \"bf16\", which changes results, a layout fits");
  EXPECT_CONTAINS(error, "the smallest world size that fits is 2");
  EXPECT_EQ(error_with(10e9).find("main_grads_dtype"), std::string::npos);
  hardware.host.link_bandwidth = 0;
  EXPECT_CONTAINS(error_with(30e9), "without offloading: host.memory_bandwidth and host.link_bandwidth");
}

// Every cp_comm_type that the model's heads allow is tried. Hierarchies are limited to those within nodes, if the full
// group cannot exchange heads.
TEST(LayoutSearchTest, TriesEveryContextParallelCommType) {
  const Hardware hardware = catalogue("h100_sxm");
  const Workload work{.model = llama(32, 4096, 14336, 32, 8, 128256, 1 << 17), .global_batch_size = 64};
  SearchLimits limits = limits_for(hardware, 64);
  const auto comm_types = [&](i64 tp, i64 cp) {
    limits.tp = tp, limits.cp = cp;
    std::set<std::string> found;
    for_each_layout(hardware, work, limits, [&](const Layout& layout) {
      const std::string text = layout.describe(), from = str("cp ", cp, " ");
      const std::size_t begin = text.find(from) + from.size();
      found.insert(text.substr(begin, text.find(',', begin) - begin));
    });
    return found;
  };
  using testing::ElementsAre;
  EXPECT_THAT(comm_types(1, 4), ElementsAre("a2a", "all_gather", "p2p"));
  EXPECT_THAT(comm_types(2, 8), ElementsAre("a2a", "a2a+p2p of 4 x 2", "all_gather", "p2p"));
  EXPECT_THAT(comm_types(1, 64), ElementsAre("a2a+p2p of 8 x 8", "all_gather", "p2p"));  // for 32 heads
  EXPECT_THAT(comm_types(8, 8), ElementsAre("all_gather", "p2p"));
}

// Tensor and context-parallel ranks divide the groups of recurrent mixers.
TEST(LayoutSearchTest, DividesGroupsOfRecurrentMixers) {
  const Hardware hardware = catalogue("h100_sxm");
  Workload work{.model = llama(32, 4096, 14336, 32, 8, 128256, 1 << 17), .global_batch_size = 64};
  work.model.recurrent = {.linear_attention_freq = {4}, .linear_num_key_heads = 4, .linear_num_value_heads = 8};
  std::set<i64> found;
  for_each_layout(hardware, work, limits_for(hardware, 64), [&](const Layout& layout) {
    if (found.insert(layout.tp * layout.cp).second) {
      EXPECT_THAT(layout_conflicts(model_sizes(work.model), layout, 64), testing::IsEmpty());
    }
  });
  EXPECT_EQ(found, (std::set<i64>{1, 2, 4}));
}

// If some states must be offloaded, the fraction is minimal: a smaller one does not fit, and a larger one is slower.
TEST(LayoutSearchTest, OffloadsNoMoreStatesThanNecessary) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work = make_workload(load_config(source_folder() / "configs/llama_70b.toml"));
  const SearchLimits limits = limits_for(hardware, 16);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_FALSE(result.best.empty());
  const Candidate& best = result.best.front();
  ASSERT_EQ(best.layout.states_tier, OffloadTier::Host);
  ASSERT_GT(best.layout.offloaded_state_fraction, 0.02);
  ASSERT_LT(best.layout.offloaded_state_fraction, 1);
  EXPECT_THAT(best.layout.describe(), HasSubstr(" % of optimizer state in host memory"));
  LayoutMemory memory(work);
  for (const double more : {-0.01, 0.01}) {
    Layout other = best.layout;
    other.offloaded_state_fraction += more;
    if (more < 0)
      EXPECT_GT(memory.peak(other).total(), limits.memory_bytes);
    else
      EXPECT_GT(step_time({hardware, program, work, other}).seconds, best.time.seconds);
  }
  const Config run = apply_layout(load_config(source_folder() / "configs/llama_70b.toml"), best.layout);
  EXPECT_EQ(run.optimizer.offload_fraction, best.layout.offloaded_state_fraction);
  EXPECT_EQ(layout_of(run, 16).describe(), best.layout.describe());
}

// If a layout fits with all layers recomputed but not with none, the minimum number of layers is recomputed.
TEST(LayoutSearchTest, RecomputesNoMoreLayersThanNecessary) {
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Config base = load_config(source_folder() / "configs/llama_8b.toml");
  const Workload work = make_workload(base);
  const SearchLimits limits = limits_for(hardware, 3);
  const SearchResult result = search_layouts(hardware, program, work, limits);
  ASSERT_FALSE(result.best.empty());
  const Candidate& best = result.best.front();
  EXPECT_EQ(best.layout.recompute.method, Recompute::Method::Block) << best.layout.describe();
  EXPECT_THAT(best.layout.describe(), HasSubstr(" layers a stage"));
  LayoutMemory memory(work);
  Layout fewer = best.layout, all = best.layout;
  fewer.recompute.num_layers -= 1;
  EXPECT_GT(memory.peak(fewer).total(), limits.memory_bytes);
  all.recompute = {.granularity = Recompute::Granularity::Full};
  EXPECT_LT(best.time.seconds, 0.98 * step_time({hardware, program, work, all}).seconds);
  const Config run = apply_layout(base, best.layout);
  EXPECT_THAT(run.conflicts(), testing::IsEmpty());
  EXPECT_EQ(run.training.recompute_num_layers, best.layout.recompute.num_layers);
  EXPECT_EQ(layout_of(run, 3).describe(), best.layout.describe());
  double peak = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(run, 3)) peak = std::max(peak, rank.total());
  EXPECT_NEAR(best.memory.total() / peak, 1, 1e-9);
}

// An output layer that costs as much as several layers is on a stage with fewer of them.
TEST(LayoutSearchTest, BalancesStagesWithLargeOutputLayer) {
  const ModelConfig m = llama(32, 4096, 14336, 32, 8, 128256, 8192);  // the output layer counts as two layers
  EXPECT_THAT(stage_layouts(m, 4), testing::ElementsAre("", "Et*8|(t*9|)*2t*6L"));
  EXPECT_THAT(stage_layouts(gpt(10, 1024, 16), 4), testing::ElementsAre(HasSubstr("E")));  // not divisible
  EXPECT_THAT(stage_layouts(llama(126, 16384, 53248, 128, 8, 128256, 8192), 128), testing::ElementsAre("E|(t|)*126L"));
  EXPECT_THAT(stage_layouts(gpt(4, 1024, 16), 8), testing::IsEmpty());
  ModelConfig with_mtp = gpt(10, 1024, 16);
  with_mtp.mtp_num_layers = 2;
  EXPECT_THAT(stage_layouts(with_mtp, 4), testing::ElementsAre(testing::EndsWith("mmL")));
  with_mtp.untie_embeddings_and_output_weights = true;
  EXPECT_THAT(stage_layouts(with_mtp, 4), testing::ElementsAre("Et*3|t*3|t*4|mmL", "Et*4|t*4|t*2mm|L"));
  const Hardware hardware = catalogue("h100_sxm");
  const KernelTraits program;
  const Workload work{.model = m, .global_batch_size = 64};
  const auto seconds = [&](const std::string& stages) {
    return step_time({hardware, program, work, {.tp = 2, .pp = 4, .stages = stages}}).seconds;
  };
  EXPECT_LT(seconds("Et*8|(t*9|)*2t*6L"), 0.97 * seconds(""));
}

}  // namespace
}  // namespace mcpp
