// Reading the outcome of a step only after half of the next one is queued trains bitwise identically to reading it
// immediately.
#include <gtest/gtest.h>

#include "tensor/ops/ops.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::deferred_outcome_test {
namespace {

using test::LayoutRank;
using test::Numbers;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

constexpr i64 kSteps = 6, kBadStep = 2, kNever = 1 << 30;

RunTask task() {
  ModelConfig model = test::tiny_gpt2();
  model.num_layers = 2;
  model.num_attention_heads = 2;
  RunTask result = test::learnable_task(model);
  result.steps = kSteps;
  return result;
}

const std::vector<RunLayout>& layouts() {
  static const std::vector<RunLayout> list{{"one", {}},
                                           {"tp2_pp2", {.tp = 2, .pp = 2}},
                                           {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
                                           {"tp2_dp2_zero3", {.tp = 2, .dp = 2, .zero_stage = 3}}};
  return list;
}

enum class Order { Immediate, Deferred };

/// Trains. Emulates a memory fault: only `bad_rank` has NaN in its gradients of one step after the reduction.
RunResult run(const RunLayout& layout, Order order, int bad_rank = -1) {
  const RunTask run_task = task();
  RunResult result;
  std::mutex mutex;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(run_task, layout, world);
    Numbers losses;
    std::vector<i64> updates;
    const auto settle = [&] {
      const StepOutcome outcome = self.state().outcome();
      losses.push_back(outcome.loss);
      updates.push_back(self.state().optimizer().steps());
    };
    for (i64 step = 0; step < kSteps; ++step) {
      self.backward(step);
      if (order == Order::Deferred && step > 0) settle();
      if (rank == bad_rank && step == kBadStep) {
        self.state().chunks().front().memory->visit_grads(
            [](const Param&, i64, Tensor values) { ops::scale(values, std::nan("")); });
      }
      self.update(step);
      if (order == Order::Immediate) settle();
    }
    if (order == Order::Deferred) settle();
    for (i64 step = 0; step < kSteps; ++step) {
      const bool was_skipped = bad_rank >= 0 && step >= kBadStep;
      EXPECT_EQ(updates[static_cast<std::size_t>(step)], step + (was_skipped ? 0 : 1)) << layout.name;
    }
    const std::lock_guard lock(mutex);
    self.collect(result.weights);
    if (rank == 0) result.losses = losses;
  });
  return result;
}

TEST(DeferredOutcomeTest, IsBitwiseIdenticalToImmediateOutcome) {
  for (const RunLayout& layout : layouts()) {
    const RunResult immediate = run(layout, Order::Immediate), deferred = run(layout, Order::Deferred);
    EXPECT_EQ(immediate.losses, deferred.losses) << layout.name;
    EXPECT_EQ(immediate.weights, deferred.weights) << layout.name;
    EXPECT_EQ(immediate.losses, run_layout(task(), layout).losses) << layout.name;
  }
}

TEST(DeferredOutcomeTest, NanOnOneRankSkipsUpdateOnAllRanks) {
  for (const RunLayout& layout : layouts()) {
    const int last = layout.ranks() - 1;
    const RunResult immediate = run(layout, Order::Immediate, last), deferred = run(layout, Order::Deferred, last);
    EXPECT_EQ(immediate.losses, deferred.losses) << layout.name;
    EXPECT_EQ(immediate.weights, deferred.weights) << layout.name;
    for (const double loss : deferred.losses) EXPECT_TRUE(std::isfinite(loss)) << layout.name;
  }
}

TEST(DeferredOutcomeTest, AllRanksReceiveLargestStopRequest) {
  const RunTask run_task = task();
  const RunLayout layout{"tp2_pp2", {.tp = 2, .pp = 2}};
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(run_task, layout, world);
    test::SignalAfter watch(rank == 2 ? 0 : kNever, 0.5 * rank);
    self.state().set_observer(&watch);
    self.backward(0);
    self.state().update({.lr = 1e-3});
    EXPECT_EQ(self.state().stop_request().signal, 0) << "no rank has received the signal yet";
    self.state().outcome();
    EXPECT_EQ(self.state().stop_request().signal, 15);
    EXPECT_EQ(self.state().stop_request().minutes, 1.5);
  });
}

TEST(DeferredOutcomeTest, RejectsCallsInWrongOrder) {
  const RunTask run_task = task();
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(run_task, {}, world);
    TrainingState& state = self.state();
    EXPECT_THROW(state.outcome(), Error) << "there is no update";
    EXPECT_THROW(state.update({.lr = 1e-3}), Error) << "without gradients";
    self.backward(0);
    state.update({.lr = 1e-3});
    self.backward(1);
    EXPECT_THROW(state.update({.lr = 1e-3}), Error) << "before the outcome of the first";
  });
}

/// The outcome is finite, but differs on one rank. All ranks must store the same values, so that they do not diverge
/// later.
TEST(DeferredOutcomeTest, IsIdenticalOnAllRanks) {
  const RunTask run_task = task();
  const RunLayout layout{"tp2_dp2", {.tp = 2, .dp = 2}};
  std::vector<StepOutcome> outcomes(4);
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(run_task, layout, world);
    self.backward(0);
    Tensor loss = self.state().loss_totals().flat(0, 1);
    if (rank == 3) ops::scale(loss, 1000);
    self.state().update({.lr = 1e-3, .rule = {.max_loss = 100}});
    outcomes[static_cast<std::size_t>(rank)] = self.state().outcome();
  });
  for (const StepOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status, StepStatus::Spike);
    EXPECT_EQ(outcome.loss, outcomes[0].loss);
    EXPECT_EQ(outcome.tokens, outcomes[0].tokens);
  }
}

TEST(DeferredOutcomeTest, EvaluationMatchesImmediateOutcome) {
  const RunTask run_task = task();
  for (const RunLayout& layout : layouts()) {
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      LayoutRank self(run_task, layout, world);
      test::SignalAfter never(kNever), now(rank == layout.ranks() - 1 ? 0 : kNever);
      self.state().set_observer(&never);
      self.start_evaluation(run_task, 0);
      self.start_evaluation(run_task, 1);
      const EvaluationOutcome first = self.state().evaluation(), second = self.state().evaluation();
      EXPECT_THROW(self.state().evaluation(), Error);
      EXPECT_EQ(self.state().stop_request().signal, 0);
      self.state().set_observer(&now);
      self.start_evaluation(run_task, 1);
      self.state().evaluation();
      EXPECT_EQ(self.state().stop_request().signal, 15) << "the signal is known only to the last rank";
      self.state().set_observer(nullptr);
      EXPECT_EQ(first.tokens, run_task.global_batch_size * run_task.model.seq_length);
      EXPECT_NE(first.loss, second.loss);
      EXPECT_EQ(first.loss, self.evaluate(run_task, 0).loss) << layout.name;
      EXPECT_EQ(second.loss, self.evaluate(run_task, 1).loss) << layout.name;
    });
  }
}

}  // namespace
}  // namespace mcpp::deferred_outcome_test
