// Gradient norms of layers and losses of samples, by which spikes are attributed, on every layout.
#include "megatron_cpp/train/spike_causes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "tests/support/errors.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::spike_causes_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(SpikeCausesTest, DescribesLayersThatRoseMost) {
  EXPECT_EQ(
      describe_layer_norms(
          {{"embedding", 2, 1}, {"decoder.layers.0", 1, 0.1}, {"decoder.layers.1", 3, 1.5}, {"output_layer", 4, 4}}),
      "gradient norms that rose most: decoder.layers.0 1.00 (10.0 times its usual 0.100), embedding 2.00 (2.00 "
      "times its usual 1.00), decoder.layers.1 3.00 (2.00 times its usual 1.50)");
  EXPECT_EQ(describe_layer_norms({{"embedding", 2, 0}, {"decoder.layers.0", 5, 0}}),
            "largest gradient norms: decoder.layers.0 5.00, embedding 2.00");
  EXPECT_EQ(describe_layer_norms({{"embedding", kNan, 1}, {"decoder.layers.0", kNan, 1}, {"decoder.layers.1", 3, 1}}),
            "the gradient is not finite in 2 of 3 layers, of which decoder.layers.0 is nearest to the loss");
}

ModelConfig mixture() {
  ModelConfig model = test::tiny_llama();
  model.moe.num_experts = 4;
  return model;
}

RunTask task_of(ModelConfig model) {
  model.num_layers = 4;
  model.num_attention_heads = 4;
  model.seq_length = 8;
  RunTask task = test::learnable_task(model, DType::F64);
  task.micro_batch_size = 2;
  return task;
}

struct Causes {
  std::vector<LayerNorm> layers;
  std::map<i64, double> losses;
  double loss = 0, grad_norm = 0;
};

/// Returns the causes of the third step, on rank 0; those of all ranks must agree.
Causes causes_of(const RunTask& task, const RunLayout& layout) {
  std::vector<Causes> ranks(static_cast<std::size_t>(layout.ranks()));
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.state().record_sample_losses(true);
    self.state().record_layer_squares();
    LayerNormHistory history(std::cref(self.state()), world, 128);
    Causes& causes = ranks[static_cast<std::size_t>(rank)];
    for (i64 step = 0; step < 3; ++step) {
      const StepOutcome outcome = self.step(step);
      causes = {history.last_step(outcome.tokens), mean_sample_losses(self.state(), world), outcome.loss,
                outcome.grad_norm};
      history.add_step(outcome.tokens);
    }
  });
  for (const Causes& causes : ranks) {
    EXPECT_EQ(causes.losses, ranks[0].losses);
    EXPECT_EQ(causes.layers.size(), ranks[0].layers.size());
  }
  return ranks[0];
}

double norm_of(const std::vector<LayerNorm>& layers) {
  double sum = 0;
  for (const LayerNorm& layer : layers) sum += layer.norm * layer.norm;
  return std::sqrt(sum);
}

void expect_same_on_every_layout(const RunTask& task, const std::vector<RunLayout>& layouts) {
  const Causes expected = causes_of(task, {});
  EXPECT_NEAR(norm_of(expected.layers), expected.grad_norm, 1e-12);
  ASSERT_EQ(expected.losses.size(), static_cast<std::size_t>(task.global_batch_size));
  double mean = 0;
  for (const auto& [sample, loss] : expected.losses) mean += loss / static_cast<double>(task.global_batch_size);
  EXPECT_NEAR(mean, expected.loss, 1e-12);
  EXPECT_EQ(expected.losses.begin()->first, 2 * task.global_batch_size);
  EXPECT_EQ(expected.layers.front().layer, "embedding");
  for (const RunLayout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Causes causes = causes_of(task, layout);
    ASSERT_EQ(causes.layers.size(), expected.layers.size());
    for (std::size_t i = 0; i < causes.layers.size(); ++i) {
      EXPECT_EQ(causes.layers[i].layer, expected.layers[i].layer);
      EXPECT_NEAR(causes.layers[i].norm / expected.layers[i].norm, 1, 1e-9) << causes.layers[i].layer;
      EXPECT_NEAR(causes.layers[i].usual / expected.layers[i].usual, 1, 1e-9) << causes.layers[i].layer;
    }
    ASSERT_EQ(causes.losses.size(), expected.losses.size());
    for (const auto& [sample, loss] : expected.losses) EXPECT_NEAR(causes.losses.at(sample), loss, 1e-9) << sample;
  }
}

TEST(SpikeCausesTest, AreSameOnEveryLayout) {
  expect_same_on_every_layout(task_of(test::tiny_gpt2()),
                              {{"tp2", {.tp = 2}},
                               {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
                               {"pp2", {.pp = 2}},
                               {"cp2", {.cp = 2}},
                               {"dp2", {.dp = 2}},
                               {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
                               {"hsdp_2x2_zero1", {.dp = 4, .zero_stage = 1, .instances = 2}},
                               {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}}});
  expect_same_on_every_layout(task_of(mixture()), {{"ep2", {.dp = 2, .ep = 2}},
                                                   {"tp2_ep2_zero1", {.tp = 2, .dp = 2, .ep = 2, .zero_stage = 1}}});
}

}  // namespace
}  // namespace mcpp::spike_causes_test
