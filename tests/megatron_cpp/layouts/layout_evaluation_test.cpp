// Evaluation between training steps, on layouts: correct, and without effect on training.
#include <gtest/gtest.h>

#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::layout_evaluation_test {
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

/// Trains two steps, with an evaluation of other samples in twice as many microbatches after the first if `evaluates`.
Losses two_steps(const RunLayout& layout, bool evaluates, const RunTask& training = task()) {
  Losses losses;
  RunTask held_out = training;
  held_out.global_batch_size = 2 * training.global_batch_size;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(training, layout, world);
    Losses rank_result;
    rank_result.training.push_back(self.step(0).loss);
    if (evaluates) rank_result.evaluation.push_back(self.evaluate(held_out, 7).loss);
    rank_result.training.push_back(self.step(1).loss);
    if (rank == 0) losses = rank_result;
  });
  return losses;
}

const RunLayout kPipelines[]{
    {"pp2_gpipe", {.pp = 2, .schedule = ScheduleKind::GPipe}},
    {"pp2_interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
    {"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
};

TEST(EvaluationLayoutsTest, IsBitwiseIdenticalToOneRankAndDoesNotChangeTraining) {
  const Losses one = two_steps({}, true);
  EXPECT_EQ(one.training, two_steps({}, false).training);
  for (const RunLayout& layout : kPipelines) {
    SCOPED_TRACE(layout.name);
    const Losses losses = two_steps(layout, true);
    EXPECT_EQ(losses.evaluation, one.evaluation);
    EXPECT_EQ(losses.training, one.training);
  }
}

/// Evaluation does not use multi-token prediction, so its messages are smaller than those of training.
ModelConfig prediction_model() {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.seq_length = 8;
  model.mtp_num_layers = 2;
  return model;
}

const RunLayout kPredictionStages[]{
    {"pp2_gpipe", {.pp = 2, .schedule = ScheduleKind::GPipe, .stages = "Ettttmm|L"}},
    {"pp4", {.pp = 4, .stages = "Ett|tt|mm|L"}},
    {"pp2_interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .stages = "Ett|t|tmm|L"}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .stages = "Ett|t|tmm|L"}},
};

TEST(EvaluationLayoutsTest, IsBitwiseIdenticalToOneRankWithPredictionInItsOwnStage) {
  const RunTask training = test::learnable_task(prediction_model());
  const Losses one = two_steps({}, true, training);
  for (const RunLayout& layout : kPredictionStages) {
    SCOPED_TRACE(layout.name);
    const Losses losses = two_steps(layout, true, training);
    EXPECT_EQ(losses.evaluation, one.evaluation);
    EXPECT_EQ(losses.training, one.training);
  }
}

TEST(EvaluationLayoutsTest, DoesNotChangeTrainingUnderZero) {
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const RunLayout layout{{.pp = 2, .dp = 2, .zero_stage = stage}};
    const Losses with = two_steps(layout, true);
    EXPECT_NEAR(with.evaluation[0], two_steps({}, true).evaluation[0], 1e-5);
    EXPECT_EQ(with.training, two_steps(layout, false).training);
  }
}

/// Logits after each token of a sample of a different step, computed between two steps, and the losses of these steps,
/// which must not change.
struct Logits {
  std::vector<Numbers> of_position;
  Numbers training;
};

Logits logits_between_steps(const RunLayout& layout, const ModelConfig& model) {
  Logits found;
  const RunTask training = test::learnable_task(model);
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(training, layout, world);
    Logits rank_result;
    rank_result.training.push_back(self.step(0).loss);
    for (i64 position = 0; position < model.seq_length; ++position)
      rank_result.of_position.push_back(self.next_logits(training, 70, position));
    rank_result.training.push_back(self.step(1).loss);
    if (rank == world.size() - 1) found = rank_result;
  });
  return found;
}

TEST(NextLogitsTest, MatchLoss) {
  const RunTask training = task();
  RunTask one_sample = training;
  one_sample.global_batch_size = 1;
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(training, {}, world);
    self.step(0);
    const std::vector<i32> tokens = one_sample.tokens(70);
    double loss = 0;
    for (i64 position = 0; position < training.model.seq_length; ++position) {
      const Numbers logits = self.next_logits(one_sample, 70, position);
      ASSERT_EQ(logits.size(), static_cast<std::size_t>(training.model.vocab_size));
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit);
      loss += std::log(sum) - logits[static_cast<std::size_t>(tokens[static_cast<std::size_t>(position) + 1])];
    }
    const double mean = loss / static_cast<double>(training.model.seq_length);
    EXPECT_NEAR(self.evaluate(one_sample, 70).loss, mean, 1e-6);
  });
}

TEST(NextLogitsTest, AreBitwiseIdenticalToOneRankAndDoNotChangeTraining) {
  const Logits one = logits_between_steps({}, task().model);
  EXPECT_EQ(one.training, two_steps({}, false).training);
  for (const RunLayout& layout : kPipelines) {
    SCOPED_TRACE(layout.name);
    const Logits found = logits_between_steps(layout, task().model);
    EXPECT_EQ(found.of_position, one.of_position);
    EXPECT_EQ(found.training, one.training);
  }
}

TEST(NextLogitsTest, AreBitwiseIdenticalWithPredictionInItsOwnStage) {
  const Logits one = logits_between_steps({}, prediction_model());
  for (const RunLayout& layout : kPredictionStages) {
    SCOPED_TRACE(layout.name);
    const Logits found = logits_between_steps(layout, prediction_model());
    EXPECT_EQ(found.of_position, one.of_position);
    EXPECT_EQ(found.training, one.training);
  }
}

TEST(NextLogitsTest, MatchOneRankWhenVocabularyOrSequenceIsSharded) {
  ModelConfig model = test::tiny_llama();
  model.num_layers = 4;
  model.seq_length = 16;
  const Logits one = logits_between_steps({}, model);
  const RunLayout layouts[]{
      {"tp2", {.tp = 2, .sequence_parallel = true}},
      {"cp2", {.cp = 2}},
      {"tp2_pp2_interleaved", {.tp = 2, .pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
      {"cp2_dp2_zero3", {.cp = 2, .dp = 2, .zero_stage = 3}},
  };
  for (const RunLayout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Logits found = logits_between_steps(layout, model);
    for (std::size_t p = 0; p < one.of_position.size(); ++p) {
      for (std::size_t id = 0; id < one.of_position[p].size(); ++id)
        EXPECT_NEAR(found.of_position[p][id], one.of_position[p][id], 1e-5) << "position " << p << ", token " << id;
    }
  }
}

}  // namespace
}  // namespace mcpp::layout_evaluation_test
