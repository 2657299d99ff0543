// Random combinations of all features train the same model as one rank. RANDOM_LAYOUTS=N in the environment draws N
// additional combinations, starting with seed RANDOM_LAYOUTS_FROM.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/random_training.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/s3_environment.h"

namespace mcpp::random_layouts_test {
namespace {

using test::all_weights;
using test::RandomTraining;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

/// Number of seeds of every run.
constexpr u64 kSeeds = 80;
/// Additional seeds that failed in the past.
const std::vector<u64> kFailedOnce{87, 90};

/// Relative distance between two runs (root of the sum of squares): of the losses and norms of all steps, and of
/// the final weights.
struct Distance {
  double losses, norms, weights;

  bool is_within(const Distance& limit) const {
    return losses <= limit.losses && norms <= limit.norms && weights <= limit.weights;
  }
};

Distance distance(const RunResult& a, const RunResult& b, const ModelConfig& model) {
  return {relative_distance(a.losses, b.losses), relative_distance(a.grad_norms, b.grad_norms),
          relative_distance(all_weights(a, model), all_weights(b, model))};
}

/// Returns the allowed distance between layouts. fp64 reveals any wrong factor; the low-precision types test their own
/// code paths, and are also compared bitwise.
Distance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return {1e-11, 1e-10, 1e-8};
    case DType::F32:
      return {1e-5, 1e-5, 1e-4};
    case DType::F16:
      return {2e-3, 1e-2, 2e-3};
    default:
      return {5e-3, 5e-2, 1e-2};
  }
}

bool sums_by_factors(const RunLayout& layout) {
  return layout.formats.power_sgd_rank > 0 && layout.dp * layout.cp > 1;
}
/// Returns true if the only approximation is quantized weights, whose blocks are the same on one rank.
bool only_quantizes_weights(const RunLayout& layout) {
  return layout.formats.quantized_weights && layout.tp == 1 &&
         layout.formats.grad_reduce_format() == GradReduceFormat::Full && !sums_by_factors(layout);
}

/// Low-precision moments of values that differ by rounding may round to either of two neighbors, and so may weights
/// that are rounded stochastically; bf16 sums of gradients differ by up to half a 256th.
bool has_low_precision_state(const OptimizerConfig& o) {
  return o.stochastic_rounding || o.exp_avg_dtype != StateDType::Fp32 || o.exp_avg_sq_dtype != StateDType::Fp32 ||
         o.main_grads_dtype != GradDType::Fp32;
}

/// Int8 weights and gradients differ by up to half a 127th of the largest value of a block, with all consequences;
/// gradients reduced in bf16 by a 256th of their own value. If one rank has the same blocks, only values in the middle
/// between two steps differ. PowerSGD adds its residual in later steps, so norms are not comparable.
Distance tolerance_of(const RunTask& task, const RunLayout& layout) {
  Distance exact = tolerance_of(task.dtype);
  if (has_low_precision_state(task.optimizer))
    exact = {std::max(exact.losses, 1e-3), std::max(exact.norms, 1e-2), std::max(exact.weights, 2e-3)};
  if (only_quantizes_weights(layout))
    return {std::max(exact.losses, 1e-3), std::max(exact.norms, 1e-2), std::max(exact.weights, 2e-3)};
  if (sums_by_factors(layout)) return {3e-2, 1, 3e-2};
  if (layout.formats.quantized_weights || layout.formats.grad_reduce_format() == GradReduceFormat::Int8)
    return {2e-2, 0.1, 2e-2};
  if (layout.formats.grad_reduce_format() == GradReduceFormat::Bf16)
    return {std::max(exact.losses, 1e-3), std::max(exact.norms, 1e-2), std::max(exact.weights, 2e-3)};
  return exact;
}
RunLayout one_rank_layout(const RunLayout& layout) {
  return only_quantizes_weights(layout) ? RunLayout{{.zero_stage = 3, .formats = {.quantized_weights = true}}}
                                        : RunLayout{};
}

/// Returns the layout that must be bitwise identical: stages, schedules, recomputation, buckets, overlaps and ZeRO 1
/// keep the order of summation. This excludes fp64, whose gradient norm for clipping is not rounded.
RunLayout same_sums_as(const RunLayout& layout) {
  return {{.tp = layout.tp,
           .cp = layout.cp,
           .dp = layout.dp,
           .sequence_parallel = layout.sequence_parallel,
           .cp_comm_type = layout.cp_comm_type,
           .cp_hierarchy = layout.cp_hierarchy,
           .ep = layout.ep,
           .etp = layout.etp,
           .dispatcher = layout.dispatcher,
           .dispatch_node_ranks = layout.dispatch_node_ranks,
           .formats = {.power_sgd_rank = layout.formats.power_sgd_rank}}};
}
bool is_bitwise_identical(const RunTask& task, const RunLayout& layout) {
  return task.dtype != DType::F64 && layout.zero_stage <= 1 && layout.instances == 1 &&
         !layout.formats.quantized_weights && layout.formats.grad_reduce_format() == GradReduceFormat::Full;
}

/// Returns the fraction of expert choices that differ. Scores within rounding error may swap, and a token that is
/// routed differently changes everything after it by much more than rounding.
double moved_choices(const RunResult& a, const RunResult& b) {
  double moved = 0, all = 0;
  for (std::size_t i = 0; i < a.choices.size(); ++i)
    moved += std::abs(a.choices[i] - b.choices[i]) / 2, all += b.choices[i];
  return all > 0 ? moved / all : 0;
}

/// Returns the effect of one rounding error on one rank: the initial weights are changed in their last bit. If a norm
/// divides by a small value, the effect is large.
Distance rounding_distance(const RunTask& task, const RunResult& one_rank) {
  RunTask untrained = task, moved = task;
  untrained.steps = 0;
  test::Weights weights = run_layout(untrained, {}).weights;
  moved.initial = &weights;
  u64 number = 0;
  for (auto& [name, values] : weights) {
    for (double& x : values) x *= 1 + 0x1p-23 * (static_cast<double>(philox_key(1, "moved", number++) % 3) - 1);
  }
  return distance(run_layout(moved, {}), one_rank, task.model);
}

/// Returns true if a small deviation in fp32 may be rounding, as far as fp32 can tell.
bool may_be_rounding(const RunTask& task, const RunResult& result, const RunResult& one_rank) {
  const Distance found = distance(result, one_rank, task.model);
  if (task.dtype != DType::F32 || !found.is_within(tolerance_of(DType::BF16))) return false;
  if (const double moved = moved_choices(result, one_rank); moved > 0) return moved < 0.02;
  constexpr double kRoundingFactor = 16;  // the rounding errors of all operations together, in a different order
  const Distance once = rounding_distance(task, one_rank);
  return found.is_within({kRoundingFactor * once.losses, kRoundingFactor * once.norms, kRoundingFactor * once.weights});
}

Distance max_of(const Distance& a, const Distance& b) {
  return {std::max(a.losses, b.losses), std::max(a.norms, b.norms), std::max(a.weights, b.weights)};
}

/// Returns the allowed distance of a run with linear layers in NVFP4: at least as far as NVFP4 moves the run on one
/// rank. A value that moves across the middle between two E2M1 values changes by up to half of itself.
Distance tolerance_in_nvfp4(const RunTask& task, const RunResult& one_rank, const Distance& tolerance) {
  RunTask without = task;
  std::erase_if(without.low_precision,
                [](const LowPrecisionConfig& table) { return table.passes().uses(GemmRecipe::Nvfp4); });
  if (without.low_precision.size() == task.low_precision.size()) return tolerance;
  return max_of(tolerance, distance(run_layout(without, {}), one_rank, task.model));
}

/// Returns the allowed distance of a run with int8 weights: at least twice as far as int8 weights move the run on one
/// rank. Tensor parallelism has other blocks, and thus other rounding errors of the same size.
Distance tolerance_in_int8(const RunTask& task, const RunLayout& layout, const RunResult& one_rank,
                           const Distance& tolerance) {
  if (!layout.formats.quantized_weights || only_quantizes_weights(layout)) return tolerance;
  const RunResult quantized = run_layout(task, {{.zero_stage = 3, .formats = {.quantized_weights = true}}});
  const Distance moved = distance(quantized, one_rank, task.model);
  return max_of(tolerance, {2 * moved.losses, 2 * moved.norms, 2 * moved.weights});
}

void expect_near(const RunTask& task, const RunTask& offloaded, const RunLayout& layout, const RunResult& result) {
  const RunResult one_rank = run_layout(task, one_rank_layout(layout));
  ASSERT_EQ(all_weights(result, task.model).size(), all_weights(one_rank, task.model).size());
  const Distance found = distance(result, one_rank, task.model),
                 tolerance = tolerance_in_int8(task, layout, one_rank,
                                               tolerance_in_nvfp4(task, one_rank, tolerance_of(offloaded, layout)));
  if (!found.is_within(tolerance) && may_be_rounding(task, result, one_rank)) {  // fp64 decides
    RunTask fp64_task = task, fp64_offloaded = offloaded;
    for (RunTask* t : {&fp64_task, &fp64_offloaded}) {
      t->dtype = DType::F64;
      t->optimizer.exp_avg_dtype = t->optimizer.exp_avg_sq_dtype = StateDType::Fp32;
      t->optimizer.main_grads_dtype = GradDType::Fp32;
    }
    return expect_near(fp64_task, fp64_offloaded, layout, run_layout(fp64_offloaded, layout));
  }
  EXPECT_LE(found.losses, tolerance.losses) << name_of(task.dtype);
  EXPECT_LE(found.norms, tolerance.norms) << name_of(task.dtype);
  EXPECT_LE(found.weights, tolerance.weights) << name_of(task.dtype);
}

void expect_model_of_one_rank(u64 seed) {
  const RandomTraining training(seed);
  SCOPED_TRACE(training.text());
  if (test::runs_on_gpus() && training.recipes().contains(GemmRecipe::Tensorwise))
    GTEST_SKIP() << "tensorwise GEMMs on GPUs need sizes that are multiples of 16";
  const test::DiskFolder folder;
  RunTask offloaded = training.task(), task = offloaded;
  offloaded.optimizer.offload_folder = folder.path().string();
  task.optimizer.offload = task.optimizer.offload_params =
      OffloadTier::Device;                        // offloaded training is compared with training without offload
  task.optimizer.store_param_remainders = false;  // and master weights as remainders with a master copy
  task.optimizer.main_grads_dtype = GradDType::Fp32;
  const RunLayout layout = training.layout();
  const RunResult result = run_layout(offloaded, layout);
  expect_near(task, offloaded, layout, result);
  if (is_bitwise_identical(task, layout)) test::expect_same_bits(result, run_layout(task, same_sums_as(layout)));
}

/// Expects that the run continues bitwise identically on the same layout, wherever its tensors were and are. Some runs
/// save to an object store.
void expect_continues(u64 seed) {
  const RandomTraining training(seed);
  SCOPED_TRACE(training.text());
  if (test::runs_on_gpus() && training.recipes().contains(GemmRecipe::Tensorwise))
    GTEST_SKIP() << "tensorwise GEMMs on GPUs need sizes that are multiples of 16";
  const test::DiskFolder disk;
  const test::ScratchFolder local;
  std::optional<test::S3Environment> store;
  if (constexpr u64 kSeedsPerStore = 8; seed % kSeedsPerStore == 0) store.emplace();
  const Path saved = store ? Path("s3://bucket/run") : local.path();
  RunTask task = training.task(), moved = training.task_moved();
  task.optimizer.offload_folder = moved.optimizer.offload_folder = disk.path().string();
  RunLayout layout = training.layout();
  const test::Numbers losses = test::save_and_continue(task, layout, saved);
  const test::ScratchFolder nodes;
  EXPECT_EQ(test::lose_node_and_continue(task, layout, nodes.path()), losses) << "after the loss of a node";
  layout.activations_tier = layout.activations_tier == OffloadTier::File ? OffloadTier::Device : OffloadTier::File;
  EXPECT_EQ(test::load_and_continue(moved, layout, saved), losses);
}

u64 number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

/// Returns the seeds 1 to `count`, the seeds that failed in the past, and the seeds requested by the environment.
std::vector<u64> seeds(u64 count, const std::vector<u64>& failed_once = {}) {
  std::vector<u64> all(count);
  std::iota(all.begin(), all.end(), 1);
  const u64 from = std::max(number_from_environment("RANDOM_LAYOUTS_FROM"), count + 1),
            more = number_from_environment("RANDOM_LAYOUTS");
  for (const u64 seed : failed_once) {
    if (seed < from || seed >= from + more) all.push_back(seed);
  }
  for (u64 seed = from; seed < from + more; ++seed) all.push_back(seed);
  return all;
}
std::string name_of_seed(const testing::TestParamInfo<u64>& info) {
  return str("seed_", info.param);
}

class RandomLayoutsTest : public testing::TestWithParam<u64> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayoutsTest, testing::ValuesIn(seeds(kSeeds, kFailedOnce)), name_of_seed);

TEST_P(RandomLayoutsTest, MatchesOneRank) {
  expect_model_of_one_rank(GetParam());
}

class RandomResumeTest : public testing::TestWithParam<u64> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomResumeTest, testing::ValuesIn(seeds(kSeeds / 2)), name_of_seed);

TEST_P(RandomResumeTest, ContinuesOnAnyLayout) {
  expect_continues(GetParam());
}

}  // namespace
}  // namespace mcpp::random_layouts_test
