#include "optimizer/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "base/check.h"
#include "tests/support/build.h"

namespace mcpp {
namespace {

/// Returns the configuration of each case in tests/golden/lr_schedules.csv, stepped in batches of 4 samples.
OptimizerConfig golden_config(const std::string& name) {
  OptimizerConfig c;
  c.lr = 6e-4;
  c.min_lr = 6e-5;
  c.lr_warmup_samples = name == "cosine_init_lr_no_warmup" ? 0 : 40;
  c.lr_decay_samples = 320;
  c.weight_decay = 0.01;
  if (name.find("init_lr") != std::string::npos) c.lr_warmup_init = 1e-5;
  if (name == "constant") c.lr_decay_style = LrDecayStyle::Constant;
  if (name.starts_with("cosine")) c.lr_decay_style = LrDecayStyle::Cosine;
  if (name == "inverse_square_root") c.lr_decay_style = LrDecayStyle::InverseSquareRoot;
  if (name.starts_with("wsd")) {
    static const std::map<std::string, WsdDecayStyle> kStyles{{"wsd_exponential", WsdDecayStyle::Exponential},
                                                              {"wsd_linear", WsdDecayStyle::Linear},
                                                              {"wsd_cosine", WsdDecayStyle::Cosine},
                                                              {"wsd_minus_sqrt", WsdDecayStyle::MinusSqrt}};
    c.lr_decay_style = LrDecayStyle::Wsd;
    c.lr_wsd_decay_style = kStyles.at(name);
    c.lr_wsd_decay_samples = 80;
  }
  if (name.find("wd_ramp") != std::string::npos) {
    c.weight_decay_incr_style = name.ends_with("linear") ? WeightDecayIncrStyle::Linear : WeightDecayIncrStyle::Cosine;
    c.start_weight_decay = 0.01;
    c.end_weight_decay = 0.1;
  }
  return c;
}

struct GoldenRow {
  std::string name;
  i64 samples;
  double lr, weight_decay;
};

std::vector<GoldenRow> golden_rows() {
  std::ifstream file(test::golden_folder() / "lr_schedules.csv");
  std::vector<GoldenRow> rows;
  std::string line;
  std::getline(file, line);  // header
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = split(line, ',');
    rows.push_back({cells.at(0), std::stoll(cells.at(2)), std::stod(cells.at(3)), std::stod(cells.at(4))});
  }
  return rows;
}

void expect_close(double got, double wanted, const GoldenRow& row) {
  EXPECT_NEAR(got, wanted, 1e-12) << row.name << " at " << row.samples;
  EXPECT_LE(std::abs(got - wanted), 1e-12 * std::abs(wanted)) << row.name << " at " << row.samples;
}

TEST(LrScheduleTest, MatchesMegatronGoldenValues) {
  const std::vector<GoldenRow> rows = golden_rows();
  ASSERT_EQ(rows.size(), 1200u);
  const TrainingLength length{.train_iters = 0, .train_samples = 400, .global_batch_size = 4};
  for (const GoldenRow& row : rows) {
    const LrSchedule schedule(golden_config(row.name), length);
    expect_close(schedule.lr(row.samples), row.lr, row);
    expect_close(schedule.weight_decay(row.samples), row.weight_decay, row);
  }
}

TEST(LrScheduleTest, CountsIterationsAsGlobalBatches) {
  OptimizerConfig in_samples = golden_config("wsd_cosine"), in_iterations = in_samples;
  in_iterations.lr_warmup_samples = in_iterations.lr_decay_samples = in_iterations.lr_wsd_decay_samples = 0;
  in_iterations.lr_warmup_iters = 10;
  in_iterations.lr_decay_iters = 80;
  in_iterations.lr_wsd_decay_iters = 20;
  const LrSchedule a(in_samples, {.train_samples = 400, .global_batch_size = 4});
  const LrSchedule b(in_iterations, {.train_iters = 100, .global_batch_size = 4});
  for (i64 n = 0; n <= 450; ++n) {
    EXPECT_EQ(a.lr(n), b.lr(n)) << n;
    EXPECT_EQ(a.weight_decay(n), b.weight_decay(n)) << n;
  }
}

TEST(LrScheduleTest, FollowsIterationsWhenLengthsAreInIterations) {
  OptimizerConfig config;
  config.lr = 1;
  config.lr_decay_style = LrDecayStyle::Linear;
  config.lr_warmup_iters = 4;
  // 10 iterations done with other batch sizes, of 40, 80 or 160 samples.
  for (const i64 batch : {2, 4, 8}) {
    const LrSchedule schedule(config, {.train_iters = 20, .global_batch_size = batch});
    for (const i64 trained_samples : {40, 80, 160})
      EXPECT_DOUBLE_EQ(schedule.lr(schedule.position(10, trained_samples)), 1 - (10 - 4) / 16.0);
  }
}

TEST(LrScheduleTest, FollowsSamplesWhenLengthsAreInSamples) {
  OptimizerConfig config;
  config.lr = 1;
  config.lr_decay_style = LrDecayStyle::Linear;
  const LrSchedule schedule(config, {.train_samples = 80, .global_batch_size = 4});
  for (const i64 trained_iterations : {5, 10, 20})
    EXPECT_DOUBLE_EQ(schedule.lr(schedule.position(trained_iterations, 60)), 0.25);
}

TEST(LrScheduleTest, DecaysOverEntireTrainingByDefault) {
  OptimizerConfig config;
  config.lr = 1;
  config.lr_warmup_fraction = 0.25;
  const LrSchedule schedule(config, {.train_iters = 10, .global_batch_size = 3});
  EXPECT_DOUBLE_EQ(schedule.lr(3), 3 / 7.5);  // the warm-up of 7.5 samples need not be an integer
  EXPECT_DOUBLE_EQ(schedule.lr(15), 1 - (15 - 7.5) / 22.5);
  EXPECT_DOUBLE_EQ(schedule.lr(30), 0);
  EXPECT_DOUBLE_EQ(schedule.lr(31), 0);
}

void expect_refused(const OptimizerConfig& config, const TrainingLength& length, const std::string& key) {
  try {
    const LrSchedule schedule(config, length);
    FAIL() << "should name " << key;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::BadInput);
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
  }
}

TEST(LrScheduleTest, RejectsInconsistentLengths) {
  OptimizerConfig config;
  config.lr_warmup_iters = 10;
  expect_refused(config, {.train_iters = 10}, "lr_warmup_iters");
  expect_refused(config, {.train_iters = 0}, "train_iters");
  expect_refused(config, {.train_iters = 10, .train_samples = 10}, "train_samples");
  config.lr_warmup_iters = 0;
  config.lr_decay_style = LrDecayStyle::Wsd;
  config.lr_wsd_decay_iters = 11;
  expect_refused(config, {.train_iters = 10}, "lr_wsd_decay_iters");
}

}  // namespace
}  // namespace mcpp
