// Random compositions of everything that exists train the model that one rank trains. RANDOM_LAYOUTS=N in the
// environment draws N more than the test does by itself; RANDOM_LAYOUTS_FROM says with which seed they begin.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/support/disk_folder.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/random_training.h"
#include "tests/support/layouts/resumed_run.h"

namespace mcpp::random_layouts_test {
namespace {

using test::all_weights;
using test::RandomTraining;
using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

/// Drawn at every run.
constexpr u64 kSeeds = 80;
/// Further seeds, which failed once.
const std::vector<u64> kFailedOnce{87, 90};

/// Between two trainings, relative (root of the sum of squares): of the losses and norms of all steps, and of the
/// weights at the end.
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

/// How far a layout may move a training. In fp64 a wrong factor anywhere is seen; the narrow types are there for their
/// own code, and are compared bit by bit as well.
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
  return layout.power_sgd_rank > 0 && layout.dp * layout.cp > 1;
}
/// Whether all that is other than in full is weights in blocks that a rank alone has, too.
bool packs_as_one_rank(const RunLayout& layout) {
  return layout.quantized_weights && layout.tp == 1 && layout.grad_reduce_format == GradReduceFormat::Full &&
         !sums_by_factors(layout);
}

/// Small moments of numbers that differ by rounding may be the one or the other of two neighbours; sums of gradients in
/// bf16 are others by half a 256th.
bool rounds_what_it_keeps(const OptimizerConfig& o) {
  return o.exp_avg_dtype != StateDType::Fp32 || o.exp_avg_sq_dtype != StateDType::Fp32 ||
         o.main_grads_dtype != GradDType::Fp32;
}

/// Weights and gradients in a byte each are others by half a 127th of the largest of a block, and so is all that
/// follows, gradients that travel in bf16 by a 256th of their own; where one rank has the same blocks, but for
/// numbers that lie in the middle of two bytes. What factors leave out comes in later steps, so that norms are of
/// something else.
Distance tolerance_of(const RunTask& task, const RunLayout& layout) {
  Distance in_full = tolerance_of(task.dtype);
  if (rounds_what_it_keeps(task.optimizer))
    in_full = {std::max(in_full.losses, 1e-3), std::max(in_full.norms, 1e-2), std::max(in_full.weights, 2e-3)};
  if (packs_as_one_rank(layout))
    return {std::max(in_full.losses, 1e-3), std::max(in_full.norms, 1e-2), std::max(in_full.weights, 2e-3)};
  if (sums_by_factors(layout)) return {3e-2, 1, 3e-2};
  if (layout.quantized_weights || layout.grad_reduce_format == GradReduceFormat::Int8) return {2e-2, 0.1, 2e-2};
  if (layout.grad_reduce_format == GradReduceFormat::Bf16)
    return {std::max(in_full.losses, 1e-3), std::max(in_full.norms, 1e-2), std::max(in_full.weights, 2e-3)};
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
         layout.grad_reduce_format == GradReduceFormat::Full;
}

/// How many choices of experts are others, of all. Scores as near as rounding trade places, and a token that goes
/// elsewhere moves all that follows by far more than rounding.
double moved_choices(const RunResult& a, const RunResult& b) {
  double moved = 0, all = 0;
  for (std::size_t i = 0; i < a.choices.size(); ++i)
    moved += std::abs(a.choices[i] - b.choices[i]) / 2, all += b.choices[i];
  return all > 0 ? moved / all : 0;
}

/// How far one rounding moves one rank: of the weights that it begins with, by their last bit or not. Where a norm
/// divides by little, much depends on it.
Distance of_rounding(const RunTask& task, const RunResult& one_rank) {
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

/// Whether what is off in fp32, and not much, is rounding, as far as fp32 can tell.
bool may_be_rounding(const RunTask& task, const RunResult& result, const RunResult& one_rank) {
  const Distance found = distance(result, one_rank, task.model);
  if (task.dtype != DType::F32 || !found.is_within(tolerance_of(DType::BF16))) return false;
  if (const double moved = moved_choices(result, one_rank); moved > 0) return moved < 0.02;
  constexpr double kRoundings = 16;  // those of all operations together, in another order
  const Distance once = of_rounding(task, one_rank);
  return found.is_within({kRoundings * once.losses, kRoundings * once.norms, kRoundings * once.weights});
}

void expect_near(const RunTask& task, const RunTask& offloaded, const RunLayout& layout, const RunResult& result) {
  const RunResult one_rank = run_layout(task, one_rank_beside(layout));
  ASSERT_EQ(all_weights(result, task.model).size(), all_weights(one_rank, task.model).size());
  const Distance found = distance(result, one_rank, task.model), tolerance = tolerance_of(offloaded, layout);
  if (!found.is_within(tolerance) && may_be_rounding(task, result, one_rank)) {  // then fp64 tells
    RunTask wide = task, wide_offloaded = offloaded;
    for (RunTask* t : {&wide, &wide_offloaded}) {
      t->dtype = DType::F64;
      t->optimizer.exp_avg_dtype = t->optimizer.exp_avg_sq_dtype = StateDType::Fp32;
      t->optimizer.main_grads_dtype = GradDType::Fp32;
    }
    return expect_near(wide, wide_offloaded, layout, run_layout(wide_offloaded, layout));
  }
  EXPECT_LE(found.losses, tolerance.losses) << name_of(task.dtype);
  EXPECT_LE(found.norms, tolerance.norms) << name_of(task.dtype);
  EXPECT_LE(found.weights, tolerance.weights) << name_of(task.dtype);
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
  task.optimizer.main_grads_dtype = GradDType::Fp32;
  const RunLayout layout = training.layout();
  const RunResult result = run_layout(offloaded, layout);
  expect_near(task, offloaded, layout, result);
  if (promises_bits(task, layout)) test::expect_same_bits(result, run_layout(task, same_sums_as(layout)));
}

/// On the same layout, whatever the places of its numbers were and are.
void expect_goes_on(u64 seed) {
  const RandomTraining training(seed);
  SCOPED_TRACE(training.text());
  const test::DiskFolder disk;
  const test::ScratchFolder saved;
  RunTask task = training.task(), moved = training.task_moved();
  task.optimizer.offload_folder = moved.optimizer.offload_folder = disk.path().string();
  RunLayout layout = training.layout();
  const test::Numbers losses = test::save_and_go_on(task, layout, saved.path());
  layout.activations = layout.activations == OffloadTier::File ? OffloadTier::Device : OffloadTier::File;
  EXPECT_EQ(test::load_and_go_on(moved, layout, saved.path()), losses);
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

TEST(RandomLayouts, GoOnFromAnyPlaceInAnyOther) {
  for (u64 seed = 1; seed <= kSeeds / 2; ++seed) expect_goes_on(seed);
  const u64 from = number_from_environment("RANDOM_LAYOUTS_FROM"), more = number_from_environment("RANDOM_LAYOUTS");
  for (u64 seed = std::max(from, kSeeds / 2 + 1), end = seed + more; seed < end && !HasFailure(); ++seed)
    expect_goes_on(seed);
}

}  // namespace
}  // namespace mcpp::random_layouts_test
