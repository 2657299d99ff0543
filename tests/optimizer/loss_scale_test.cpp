#include "optimizer/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/errors.h"

namespace mcpp {
namespace {

OptimizerConfig small_window() {
  OptimizerConfig config;
  config.initial_loss_scale = 16;
  config.min_loss_scale = 1;
  config.loss_scale_window = 3;
  config.hysteresis = 2;
  return config;
}

/// One step, and the state that must follow.
struct Step {
  bool overflow;
  double scale;
  Overflow outcome;
};
constexpr auto kFine = Overflow::None, kHandled = Overflow::Handled, kFinal = Overflow::Final;

// Derived by hand from the rules of Megatron-LM's DynamicGradScaler with a window of 3 and a hysteresis of 2: the
// number of tolerated overflows is reset only when the scale grows.
const std::vector<Step> kCourse{
    {true, 16, kHandled},  // one overflow is tolerated
    {true, 8, kHandled},   // every later one halves the scale
    {true, 4, kHandled},   //
    {false, 4, kFine},    {false, 4, kFine},
    {true, 2, kHandled},  // two good steps, then the window restarts; no reset
    {false, 2, kFine},    {false, 2, kFine},
    {false, 4, kFine},    // the third good step doubles the scale and resets
    {true, 4, kHandled},  //
    {false, 4, kFine},    {false, 4, kFine},
    {false, 8, kFine},  //
    {false, 8, kFine},    {false, 8, kFine},
    {false, 16, kFine},  // the next window starts afterwards
    {true, 16, kHandled}, {true, 8, kHandled},
    {true, 4, kHandled},  //
    {true, 2, kHandled},  {true, 1, kHandled},
    {true, 1, kFinal},  // the scale is at its minimum
    {true, 1, kFinal},  //
    {false, 1, kFine},    {false, 1, kFine},
    {false, 2, kFine},
};

TEST(LossScaleTest, FollowsMegatronRules) {
  LossScale scale(small_window(), true);
  EXPECT_EQ(scale.value(), 16);
  for (std::size_t i = 0; i < kCourse.size(); ++i) {
    EXPECT_EQ(scale.update(kCourse[i].overflow), kCourse[i].outcome) << "step " << i;
    EXPECT_EQ(scale.value(), kCourse[i].scale) << "step " << i;
  }
}

TEST(LossScaleTest, ContinuesFromSavedState) {
  for (std::size_t saved = 0; saved <= kCourse.size(); ++saved) {
    LossScale first(small_window(), true), second(small_window(), true);
    for (std::size_t i = 0; i < saved; ++i) first.update(kCourse[i].overflow);
    second.restore(first.state(), "x");
    EXPECT_EQ(second.state(), first.state());
    for (std::size_t i = saved; i < kCourse.size(); ++i) {
      EXPECT_EQ(second.update(kCourse[i].overflow), kCourse[i].outcome) << "step " << i << ", saved after " << saved;
      EXPECT_EQ(second.value(), kCourse[i].scale) << "step " << i << ", saved after " << saved;
    }
  }
}

TEST(LossScaleTest, StartsWithMegatronDefaults) {
  LossScale scale(OptimizerConfig{}, true);
  EXPECT_EQ(scale.value(), std::ldexp(1, 32));
  EXPECT_TRUE(scale.is_dynamic());
  EXPECT_EQ(scale.factor(1024), std::ldexp(1, 22));
  EXPECT_EQ(scale.factor(1025), std::ldexp(1, 21)) << "tokens are rounded up to a power of two";
}

TEST(LossScaleTest, StaysConstantWhenFixed) {
  OptimizerConfig config;
  config.loss_scale = 1000;
  for (const bool is_dynamic : {false, true}) {
    LossScale scale(config, is_dynamic);
    EXPECT_FALSE(scale.is_dynamic());
    EXPECT_EQ(scale.state(), "");
    EXPECT_EQ(scale.update(true), Overflow::Final);
    EXPECT_EQ(scale.update(false), Overflow::None);
    EXPECT_EQ(scale.value(), 1000);
    EXPECT_EQ(scale.factor(100), 1000.0 / 128);
    scale.restore("16.0 1 1", "x");
    EXPECT_EQ(scale.value(), 1000);
  }
}

TEST(LossScaleTest, IsOneWithoutFp16) {
  LossScale scale(OptimizerConfig{}, false);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_EQ(scale.factor(100), 1);
  EXPECT_EQ(scale.update(true), Overflow::Final);
}

TEST(LossScaleTest, RejectsMalformedState) {
  LossScale scale(small_window(), true);
  for (const char* text : {"", "16", "16.0 1", "x 1 1", "16.0 1 1 1", "-2.0 0 2", "0.0 0 2", "inf 0 2", "nan 0 2",
                           "16.0 -1 2", "16.0 0 -1", "16.0 0.5 2"}) {
    const std::string error = test::input_error([&] { scale.restore(text, "run/iter_1: loss_scale"); });
    EXPECT_EQ(error.find("run/iter_1: loss_scale: is not the state of a loss scale"), 0u) << text << ": " << error;
    EXPECT_EQ(scale.value(), 16) << text;
  }
}

TEST(LossScaleTest, AcceptsStateFromDifferentSettings) {
  LossScale scale(small_window(), true);
  scale.restore("0.25 900 7", "x");
  EXPECT_EQ(scale.value(), 1) << "the lowest";
  EXPECT_EQ(scale.update(false), Overflow::None);
  EXPECT_EQ(scale.value(), 2) << "the window is over";
}

}  // namespace
}  // namespace mcpp
