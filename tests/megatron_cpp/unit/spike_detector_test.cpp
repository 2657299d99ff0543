#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "megatron_cpp/step/step_policy.h"

namespace mcpp {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

TEST(SpikeDetectorTest, LimitIsMeanPlusDeviations) {
  const std::vector<double> values{100, 2, 4, 4, 4, 5, 5, 7, 9};  // the last eight have mean 5 and deviation 2
  EXPECT_DOUBLE_EQ(spike_limit(values, 8, 3), 11);
  EXPECT_DOUBLE_EQ(spike_limit(values, 8, 0.5), 6);
}

TEST(SpikeDetectorTest, HasNoLimitBeforeWindowIsFull) {
  EXPECT_EQ(spike_limit(std::vector<double>{1, 2, 3}, 4, 6), kNone);
  EXPECT_EQ(spike_limit({}, 2, 6), kNone);
  EXPECT_LT(spike_limit(std::vector<double>{1, 2, 3}, 3, 6), kNone);
}

TEST(SpikeDetectorTest, EqualValuesHaveNoLimit) {
  EXPECT_EQ(spike_limit(std::vector<double>{3, 3, 3}, 3, 6), kNone);
}

TEST(SpikeDetectorTest, HistoryKeepsNewestValues) {
  SpikeHistory history;
  for (int i = 1; i <= 5; ++i) history.add(i, 10 * i, 3);
  EXPECT_EQ(history.losses, (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(history.grad_norms, (std::vector<double>{30, 40, 50}));
  history.add(6, 60, 2);  // a resumed run may have a smaller window
  EXPECT_EQ(history.losses, (std::vector<double>{5, 6}));
}

TEST(StepPolicyTest, ChoosesAction) {
  TrainingConfig config;
  EXPECT_EQ(choose_action(config, StepStatus::Fine), StepAction::Continue);
  EXPECT_EQ(choose_action(config, StepStatus::NotFinite), StepAction::Skip);
  EXPECT_EQ(choose_action(config, StepStatus::Spike), StepAction::Warn);
  config.nan_policy = NanPolicy::Stop;
  config.spike_policy = SpikePolicy::Rollback;
  EXPECT_EQ(choose_action(config, StepStatus::NotFinite), StepAction::Stop);
  EXPECT_EQ(choose_action(config, StepStatus::Spike), StepAction::RollBack);
}

TEST(StepPolicyTest, OnlySkippingPoliciesPreventUpdate) {
  TrainingConfig config;
  config.spike_window = 2;
  const SpikeHistory history{.losses = {1, 3}, .grad_norms = {2, 2}};
  EXPECT_FALSE(make_step_rule(config, history).should_skip_spikes);
  EXPECT_DOUBLE_EQ(make_step_rule(config, history).max_loss, 2 + 6);
  EXPECT_EQ(make_step_rule(config, history).max_grad_norm, kNone);
  config.spike_policy = SpikePolicy::Skip;
  EXPECT_TRUE(make_step_rule(config, history).should_skip_spikes);
  config.spike_policy = SpikePolicy::Off;
  EXPECT_EQ(make_step_rule(config, history).max_loss, kNone);
}

}  // namespace
}  // namespace mcpp
