// Random compositions of everything that exists train the model that one rank trains. RANDOM_LAYOUTS=N in the
// environment draws N more than the test does by itself; RANDOM_LAYOUTS_FROM says with which seed they begin.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "tests/support/compare_runs.h"
#include "tests/support/disk_folder.h"
#include "tests/support/random_training.h"

namespace mcpp {
namespace {

using test::all_weights;
using test::Numbers;
using test::RandomTraining;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

/// Drawn at every run.
constexpr u64 kSeeds = 80;
/// Further seeds, which failed once.
const std::vector<u64> kFailedOnce{};

/// How far a layout may move the losses and norms of all steps, and the weights at the end (relative; root of the sum
/// of squares). In fp64 a wrong factor anywhere is seen; the narrow types are there for their own code, and are
/// compared bit by bit as well.
struct Tolerance {
  double losses, norms, weights;
};

Tolerance tolerance_of(DType dtype) {
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
  return layout.power_sgd_rank > 0 && layout.dp * layout.cp > 1;
}
/// Whether all that is other than in full is weights in blocks that a rank alone has, too.
bool packs_as_one_rank(const RunLayout& layout) {
  return layout.quantized_weights && layout.tp == 1 && !layout.quantized_gradients && !sums_by_factors(layout);
}

/// Weights and gradients in a byte each are others by half a 127th of the largest of a block, and so is all that
/// follows; where one rank has the same blocks, but for numbers that lie in the middle of two bytes. What factors leave
/// out comes in later steps, so that norms are of something else.
Tolerance tolerance_of(DType dtype, const RunLayout& layout) {
  const Tolerance in_full = tolerance_of(dtype);
  if (packs_as_one_rank(layout))
    return {std::max(in_full.losses, 1e-3), std::max(in_full.norms, 1e-2), std::max(in_full.weights, 2e-3)};
  if (sums_by_factors(layout)) return {3e-2, 1, 3e-2};
  if (layout.quantized_weights || layout.quantized_gradients) return {2e-2, 0.1, 2e-2};
  return in_full;
}
RunLayout one_rank_beside(const RunLayout& layout) {
  return packs_as_one_rank(layout) ? RunLayout{.zero_stage = 3, .quantized_weights = true} : RunLayout{};
}

/// What gives the same bits: stages, schedules, recomputation, buckets, overlaps, and ZeRO 1 take no sum in another
/// order. Of fp64 that is not promised, as its norm for clipping is not rounded.
RunLayout same_sums_as(const RunLayout& layout) {
  return {.tp = layout.tp,
          .dp = layout.dp,
          .sequence_parallel = layout.sequence_parallel,
          .cp = layout.cp,
          .cp_comm_type = layout.cp_comm_type,
          .cp_heads = layout.cp_heads,
          .ep = layout.ep,
          .etp = layout.etp,
          .dispatcher = layout.dispatcher,
          .power_sgd_rank = layout.power_sgd_rank};
}
bool promises_bits(const RunTask& task, const RunLayout& layout) {
  return task.dtype != DType::F64 && layout.zero_stage <= 1 && layout.instances == 1 && !layout.quantized_weights &&
         !layout.quantized_gradients;
}

void expect_model_of_one_rank(u64 seed) {
  const RandomTraining training(seed);
  SCOPED_TRACE(training.text());
  const test::DiskFolder folder;
  RunTask offloaded = training.task(), task = offloaded;
  offloaded.optimizer.offload_folder = folder.path().string();
  task.optimizer.offload = task.optimizer.offload_params =
      OffloadTier::Device;                        // what is elsewhere is compared with what is not
  task.optimizer.store_param_remainders = false;  // and master weights without a copy with those that have one
  const RunLayout layout = training.layout();
  const RunResult result = run_layout(offloaded, layout), one_rank = run_layout(task, one_rank_beside(layout));
  const Tolerance tolerance = tolerance_of(task.dtype, layout);
  EXPECT_LE(relative_distance(result.losses, one_rank.losses), tolerance.losses);
  EXPECT_LE(relative_distance(result.grad_norms, one_rank.grad_norms), tolerance.norms);
  const Numbers weights = all_weights(one_rank, task.model);
  ASSERT_EQ(all_weights(result, task.model).size(), weights.size());
  EXPECT_LE(relative_distance(all_weights(result, task.model), weights), tolerance.weights);
  if (promises_bits(task, layout)) test::expect_same_bits(result, run_layout(task, same_sums_as(layout)));
}

u64 number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

TEST(RandomLayouts, TrainTheModelOfOneRank) {
  for (const u64 seed : kFailedOnce) expect_model_of_one_rank(seed);
  for (u64 seed = 1; seed <= kSeeds; ++seed) expect_model_of_one_rank(seed);
  const u64 from = number_from_environment("RANDOM_LAYOUTS_FROM"), more = number_from_environment("RANDOM_LAYOUTS");
  for (u64 seed = std::max(from, kSeeds + 1), end = seed + more; seed < end && !HasFailure(); ++seed)
    expect_model_of_one_rank(seed);
}

}  // namespace
}  // namespace mcpp
