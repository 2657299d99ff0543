// Norms, zeros and activation statistics are the same on every layout.
#include <gtest/gtest.h>

#include <cmath>

#include "megatron_cpp/monitor/statistics.h"
#include "tests/support/four_layers.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::step_statistics_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;

RunTask task_of(bool has_experts) {
  // without key biases, whose gradient is zero up to rounding
  return test::four_layers(test::tiny_llama(), has_experts, 8);
}

struct Result {
  StepStatistics statistics;
  double grad_norm = 0;
};

Result statistics_of(const RunTask& task, const RunLayout& layout) {
  LoggingConfig config;
  config.log_params_norm = config.log_num_zeros_in_grad = true;
  config.log_layer_statistics_interval = config.tensorboard_histogram_interval = 1;
  Result result;
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.step(0);
    StatisticsCollector collector(config, self.state(), world, [](i64) { return true; });
    collector.before_backward(1);
    self.backward(1);
    collector.after_backward();
    StepStatistics statistics = collector.gradient_statistics(1);
    self.update(1);
    const double norm = self.state().outcome().grad_norm;
    collector.add_weights(1, norm, statistics);
    if (rank == 0) result = {statistics, norm};
  });
  return result;
}

/// The expected values are computed from the buffers of one rank.
TEST(StepStatisticsTest, MatchBuffersOnOneRank) {
  const RunTask task = task_of(false);
  const Result result = statistics_of(task, {"one", {}});
  double squares = 0, zeros = 0, gradient = 0, counted = 0, update = 0, updates = 0;
  run_local_ranks(1, [&](Communicator& world, int) {
    LayoutRank self(task, {"one", {}}, world);
    self.step(0);
    self.backward(1);
    const auto& memory = *self.state().chunks().front().memory;
    memory.visit_grads([&](const Param&, i64, const Tensor& values) {
      for (const float x : read_values<float>(values)) zeros += x == 0;
    });
    std::vector<float> before, after;
    const auto append_weights = [&](std::vector<float>& all) {
      memory.visit_weights([&](const Param&, i64, const Tensor& values) {
        for (const float x : read_values<float>(values)) all.push_back(x);
      });
    };
    append_weights(before);
    self.update(1);
    append_weights(after);
    for (std::size_t i = 0; i < after.size(); ++i) {
      squares += double(after[i]) * after[i];
      update += (double(after[i]) - before[i]) * (double(after[i]) - before[i]);
    }
  });
  EXPECT_NEAR(result.statistics.params_norm.value(), std::sqrt(squares), 1e-9);
  EXPECT_EQ(result.statistics.num_zeros.value(), zeros);
  EXPECT_GE(zeros, config_of(task, {}).model.hidden_size);  // rows of tokens that no sample contains
  for (const StepStatistics::Layer& layer : result.statistics.layers) gradient += layer.grad_norm * layer.grad_norm;
  EXPECT_NEAR(std::sqrt(gradient), result.grad_norm, 1e-9 * result.grad_norm);
  for (const StepStatistics::Layer& layer : result.statistics.layers) updates += layer.update_norm * layer.update_norm;
  EXPECT_NEAR(std::sqrt(updates), std::sqrt(update), 1e-6 * std::sqrt(update));
  EXPECT_GT(update, 0);
  ASSERT_EQ(result.statistics.layers.size(), 7u);
  EXPECT_EQ(result.statistics.layers[0].name, "embedding");
  EXPECT_EQ(result.statistics.layers[4].name, "decoder.layers.3");
  EXPECT_EQ(result.statistics.layers[5].name, "decoder.final_layernorm");
  EXPECT_EQ(result.statistics.layers[6].name, "output_layer");
  EXPECT_FALSE(result.statistics.layers[0].activation_rms);
  EXPECT_LE(result.statistics.layers[4].activation_rms.value(), result.statistics.layers[4].activation_max.value());
  for (const auto& [name, stats] : result.statistics.weights) {
    for (const auto& [limit, count] : stats.buckets) counted += count;
    EXPECT_GT(stats.count, 0) << name;
  }
  EXPECT_EQ(counted, total_stats(result.statistics.weights).count);
}

void expect_same(const Result& a, const Result& b, const std::string& name) {
  constexpr double kRelative = 1e-4;  // the fp32 sums have a different order
  const auto expect_close = [&](double x, double y) { EXPECT_NEAR(x, y, kRelative * std::abs(x)) << name; };
  expect_close(a.grad_norm, b.grad_norm);
  expect_close(a.statistics.params_norm.value(), b.statistics.params_norm.value());
  EXPECT_EQ(a.statistics.num_zeros.value(), b.statistics.num_zeros.value()) << name;
  EXPECT_EQ(total_stats(a.statistics.weights).count, total_stats(b.statistics.weights).count) << name;
  ASSERT_EQ(a.statistics.layers.size(), b.statistics.layers.size()) << name;
  for (std::size_t i = 0; i < a.statistics.layers.size(); ++i) {
    const StepStatistics::Layer &x = a.statistics.layers[i], &y = b.statistics.layers[i];
    EXPECT_EQ(x.name, y.name);
    expect_close(x.grad_norm, y.grad_norm);
    expect_close(x.params_norm, y.params_norm);
    expect_close(x.update_norm, y.update_norm);
    ASSERT_EQ(x.activation_rms.has_value(), y.activation_rms.has_value()) << name << " " << x.name;
    if (!x.activation_rms) continue;
    expect_close(*x.activation_rms, *y.activation_rms);
    expect_close(*x.activation_max, *y.activation_max);
  }
}

TEST(StepStatisticsTest, MatchOneRankOnEveryLayout) {
  const RunTask task = task_of(false);
  const Result one = statistics_of(task, {"one", {}});
  for (const RunLayout& layout :
       std::vector<RunLayout>{{"tp2", {.tp = 2}},
                              {"tp2 sp", {.tp = 2, .sequence_parallel = true}},
                              {"pp2", {.pp = 2}},
                              {"pp2 interleaved", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
                              {"cp2", {.cp = 2}},
                              {"dp2", {.dp = 2}},
                              {"dp4 zero1 hsdp", {.dp = 4, .zero_stage = 1, .instances = 2}},
                              {"dp2 zero3", {.dp = 2, .zero_stage = 3}},
                              {"tp2 pp2 dp2", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}}})
    expect_same(one, statistics_of(task, layout), layout.name);
}

TEST(StepStatisticsTest, MatchOneRankWithExperts) {
  const RunTask task = task_of(true);
  const Result one = statistics_of(task, {"one", {}});
  for (const RunLayout& layout : std::vector<RunLayout>{
           {"ep2", {.dp = 2, .ep = 2}}, {"tp2 ep2 zero3", {.tp = 2, .dp = 2, .ep = 2, .zero_stage = 3}}})
    expect_same(one, statistics_of(task, layout), layout.name);
}

}  // namespace
}  // namespace mcpp::step_statistics_test
