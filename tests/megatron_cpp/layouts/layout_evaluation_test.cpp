// Evaluation between the steps of a training, on layouts: right, and without a trace.
#include <gtest/gtest.h>

#include "tests/support/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::LayoutRank;
using test::Numbers;
using test::RunLayout;
using test::RunTask;

/// GPT-2 with tied embeddings and dropout.
RunTask task() {
  ModelConfig model = test::tiny_gpt2();
  model.num_layers = 4;
  model.seq_length = 8;
  model.hidden_dropout = model.attention_dropout = 0.1;
  return test::learnable_task(model);
}

struct Losses {
  Numbers training, evaluation;
};

/// Two steps, with an evaluation of other samples in twice as many microbatches after the first.
Losses two_steps(const RunLayout& layout, bool evaluates) {
  Losses losses;
  const RunTask training = task();
  RunTask held_out = task();
  held_out.global_batch_size = 2 * training.global_batch_size;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(training, layout, world);
    Losses own;
    own.training.push_back(self.step(0).loss);
    if (evaluates) own.evaluation.push_back(self.evaluate(held_out, 7).loss);
    own.training.push_back(self.step(1).loss);
    if (rank == 0) losses = own;
  });
  return losses;
}

const RunLayout kPipelines[]{
    {.name = "pp2_gpipe", .pp = 2, .schedule = ScheduleKind::GPipe},
    {.name = "pp2_interleaved", .pp = 2, .schedule = ScheduleKind::Interleaved, .virtual_stages = 2},
    {.name = "pp2_zb_h1", .pp = 2, .schedule = ScheduleKind::ZbH1},
    {.name = "pp2_zb_v", .pp = 2, .schedule = ScheduleKind::ZbV, .virtual_stages = 2},
};

TEST(EvaluationOnLayouts, GivesTheBitsOfOneRankAndChangesNothing) {
  const Losses one = two_steps({}, true);
  EXPECT_EQ(one.training, two_steps({}, false).training);
  for (const RunLayout& layout : kPipelines) {
    SCOPED_TRACE(layout.name);
    const Losses losses = two_steps(layout, true);
    EXPECT_EQ(losses.evaluation, one.evaluation);
    EXPECT_EQ(losses.training, one.training);
  }
}

TEST(EvaluationOnLayouts, ChangesNothingUnderZero) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const RunLayout layout{.pp = 2, .dp = 2, .zero_stage = stage};
    const Losses with = two_steps(layout, true);
    EXPECT_NEAR(with.evaluation[0], two_steps({}, true).evaluation[0], 1e-5);
    EXPECT_EQ(with.training, two_steps(layout, false).training);
  }
}

}  // namespace
}  // namespace mcpp
