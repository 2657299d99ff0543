// A host that learns what became of a step when the next one is half queued trains the same bits as one that waits.
#include <gtest/gtest.h>

#include "tensor/ops/ops.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::late_outcome_test {
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
  static const std::vector<RunLayout> list{{.name = "one"},
                                           {.name = "tp2_pp2", .tp = 2, .pp = 2},
                                           {.name = "dp2_zero1", .dp = 2, .zero_stage = 1},
                                           {.name = "tp2_dp2_zero3", .tp = 2, .dp = 2, .zero_stage = 3}};
  return list;
}

enum class Order { Waiting, Late };

/// `bad_rank` alone finds NaN in its gradients of one step, after they were reduced: as when its memory fails.
RunResult run(const RunLayout& layout, Order order, int bad_rank = -1) {
  const RunTask what = task();
  RunResult result;
  std::mutex mutex;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(what, layout, world);
    Numbers losses;
    std::vector<i64> updates;
    const auto settle = [&] {
      const StepOutcome outcome = self.state().outcome();
      losses.push_back(outcome.loss);
      updates.push_back(self.state().optimizer().steps());
    };
    for (i64 step = 0; step < kSteps; ++step) {
      self.backward(step);
      if (order == Order::Late && step > 0) settle();
      if (rank == bad_rank && step == kBadStep) {
        self.state().chunks().front().memory->visit_grads(
            [](const Param&, i64, Tensor values) { ops::scale(values, std::nan("")); });
      }
      self.update(step);
      if (order == Order::Waiting) settle();
    }
    if (order == Order::Late) settle();
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

TEST(LateOutcome, TrainsTheSameBits) {
  for (const RunLayout& layout : layouts()) {
    const RunResult waiting = run(layout, Order::Waiting), late = run(layout, Order::Late);
    EXPECT_EQ(waiting.losses, late.losses) << layout.name;
    EXPECT_EQ(waiting.weights, late.weights) << layout.name;
    EXPECT_EQ(waiting.losses, run_layout(task(), layout).losses) << layout.name;
  }
}

TEST(LateOutcome, OneRankThatFindsNanKeepsAllFromTheUpdate) {
  for (const RunLayout& layout : layouts()) {
    const int last = layout.ranks() - 1;
    const RunResult waiting = run(layout, Order::Waiting, last), late = run(layout, Order::Late, last);
    EXPECT_EQ(waiting.losses, late.losses) << layout.name;
    EXPECT_EQ(waiting.weights, late.weights) << layout.name;
    for (const double loss : late.losses) EXPECT_TRUE(std::isfinite(loss)) << layout.name;
  }
}

TEST(LateOutcome, TheLargestNoticeOfAllRanksReachesAll) {
  const RunTask what = task();
  const RunLayout layout{.name = "tp2_pp2", .tp = 2, .pp = 2};
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(what, layout, world);
    test::SignalAfter watch(rank == 2 ? 0 : kNever, 0.5 * rank);
    self.state().set_observer(&watch);
    self.backward(0);
    self.state().update({.lr = 1e-3});
    EXPECT_EQ(self.state().stop_request().signal, 0) << "nobody has heard of it yet";
    self.state().outcome();
    EXPECT_EQ(self.state().stop_request().signal, 15);
    EXPECT_EQ(self.state().stop_request().minutes, 1.5);
  });
}

TEST(LateOutcome, ThePartsOfAStepComeInTheirOrder) {
  const RunTask what = task();
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(what, {}, world);
    TrainingState& state = self.state();
    EXPECT_THROW(state.outcome(), Error) << "of no update";
    EXPECT_THROW(state.update({.lr = 1e-3}), Error) << "without gradients";
    self.backward(0);
    state.update({.lr = 1e-3});
    self.backward(1);
    EXPECT_THROW(state.update({.lr = 1e-3}), Error) << "before the outcome of the first";
  });
}

/// Finite, and yet another on one rank: what ranks remember of it must not part them later.
TEST(LateOutcome, AllRanksSeeTheSameOne) {
  const RunTask what = task();
  const RunLayout layout{.name = "tp2_dp2", .tp = 2, .dp = 2};
  std::vector<StepOutcome> outcomes(4);
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(what, layout, world);
    self.backward(0);
    Tensor loss = self.state().loss_totals().flat(0, 1);
    if (rank == 3) ops::scale(loss, 1000);
    self.state().update({.lr = 1e-3, .rule = {.max_loss = 100}});
    outcomes[static_cast<std::size_t>(rank)] = self.state().outcome();
  });
  for (const StepOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.verdict, StepStatus::Spike);
    EXPECT_EQ(outcome.loss, outcomes[0].loss);
    EXPECT_EQ(outcome.tokens, outcomes[0].tokens);
  }
}

TEST(LateOutcome, OfAnEvaluationIsThatOfOneThatWaits) {
  const RunTask what = task();
  for (const RunLayout& layout : layouts()) {
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      LayoutRank self(what, layout, world);
      test::SignalAfter never(kNever), now(rank == layout.ranks() - 1 ? 0 : kNever);
      self.state().set_observer(&never);
      self.start_evaluation(what, 0);
      self.start_evaluation(what, 1);
      const EvaluationOutcome first = self.state().evaluation(), second = self.state().evaluation();
      EXPECT_THROW(self.state().evaluation(), Error);
      EXPECT_EQ(self.state().stop_request().signal, 0);
      self.state().set_observer(&now);
      self.start_evaluation(what, 1);
      self.state().evaluation();
      EXPECT_EQ(self.state().stop_request().signal, 15) << "of the last rank alone";
      self.state().set_observer(nullptr);
      EXPECT_EQ(first.tokens, what.global_batch_size * what.model.seq_length);
      EXPECT_NE(first.loss, second.loss);
      EXPECT_EQ(first.loss, self.evaluate(what, 0).loss) << layout.name;
      EXPECT_EQ(second.loss, self.evaluate(what, 1).loss) << layout.name;
    });
  }
}

}  // namespace
}  // namespace mcpp::late_outcome_test
