// Training with the maximal update parametrization, compared with the package mup for PyTorch in double precision
// (tests/golden/mup, written by tests/model/make_mup_golden.py): untied and tied embeddings at three times the base
// width.
#include <gtest/gtest.h>

#include "tests/support/build.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/readers/hdf5_file.h"

namespace mcpp::golden_mup_test {
namespace {

using test::Numbers;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

class GoldenMupTest : public testing::TestWithParam<const char*> {
 protected:
  GoldenMupTest() : file_(test::golden_folder() / "mup" / str(GetParam(), ".h5")), tokens_(file_.read<i32>("tokens")) {
    for (const std::string& name : file_.names("initial"))
      initial_[name] = file_.read<double>("initial/" + name).values;
  }

  RunTask make_task() const {
    ModelConfig model;
    model.num_layers = 2;
    model.hidden_size = 24;
    model.num_attention_heads = 2;
    model.seq_length = 12;
    model.vocab_size = model.make_vocab_size_divisible_by = 16;
    model.hidden_dropout = model.attention_dropout = 0;
    model.untie_embeddings_and_output_weights = str(GetParam()) == "untied";
    model.mup = {.is_used = true, .base_hidden_size = 8, .base_head_dim = 4};
    RunTask task{.model = model, .dtype = DType::F64, .optimizer = {}, .tokens = {}};
    task.optimizer.adam_eps = 1e-16;
    task.global_batch_size = 4;
    task.steps = 12;
    task.lr = [](i64) { return 1e-2; };
    task.weight_decay = 0.1;
    task.initial = &initial_;
    task.tokens = [this](i64 sample) {
      const i64 length = tokens_.shape[1];
      const auto begin = tokens_.values.begin() + sample * length;
      return std::vector<i32>(begin, begin + length);
    };
    return task;
  }

  void expect_golden(const RunResult& run) const {
    const Numbers losses = file_.read<double>("losses").values;
    ASSERT_EQ(run.losses.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(run.losses[i] / losses[i], 1, 1e-10) << "step " << i;
    ASSERT_EQ(run.weights.size(), initial_.size());
    for (const auto& [name, values] : run.weights) {
      const Numbers expected = file_.read<double>("final/" + name).values;
      ASSERT_EQ(values.size(), expected.size()) << name;
      // The gradient of the key bias is 0 except for rounding, which AdamW amplifies to steps of full length.
      if (name.ends_with("linear_qkv.bias")) continue;
      EXPECT_LE(test::relative_distance(values, expected), 1e-9) << name;
    }
    EXPECT_LT(losses.back(), losses.front());
  }

  test::Hdf5File file_;
  test::Hdf5Array<i32> tokens_;
  test::Weights initial_;
};

INSTANTIATE_TEST_SUITE_P(Models, GoldenMupTest, testing::Values("untied", "tied"),
                         [](const auto& p) { return std::string(p.param); });

TEST_P(GoldenMupTest, TwelveStepsMatchPyTorch) {
  expect_golden(test::run_layout(make_task(), {}));
}

TEST_P(GoldenMupTest, TwelveStepsMatchPyTorchOnFourRanks) {
  expect_golden(test::run_layout(make_task(), {"tp2_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true}}));
  expect_golden(test::run_layout(make_task(), {"dp4_zero3", {.dp = 4, .zero_stage = 3}}));
}

/// Without the rules, the run differs from mup's.
TEST_P(GoldenMupTest, DiffersFromStandardParametrization) {
  RunTask task = make_task();
  task.model.mup = {};
  const RunResult run = test::run_layout(task, {});
  EXPECT_GT(std::abs(run.losses.back() / file_.read<double>("losses").values.back() - 1), 1e-2);
}

}  // namespace
}  // namespace mcpp::golden_mup_test
