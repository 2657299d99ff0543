// Ops that decide on the device whether to update: totals of losses, sums of squares, the decision, and the updates.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/host/async_copy.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test::step_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

class StepOpsTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_device(GetParam());
  }
  Device& device() { return *device_; }
  Tensor f64(const Numbers& x) { return tensor_of(x, {static_cast<i64>(x.size())}, DType::F64, device()); }

  Numbers decide(double loss_sum, double targets, double squares, const StepRule& rule = {}) {
    Tensor result = garbage({StepScalars::kCount}, DType::F64, device());
    ops::compute_update_scale(f64({loss_sum, targets}), f64({squares}), rule, result);
    return to_doubles(result);
  }
  static StepStatus verdict(const Numbers& x) { return static_cast<StepStatus>(x[StepScalars::kStatus]); }

 private:
  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, StepOpsTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(StepOpsTest, AddsSumOfSquaresToExistingValue) {
  Tensor sum = f64({100});
  ops::add_sum_of_squares(tensor_of({1, -2, 3}, {3}, DType::BF16, device()), sum);
  ops::add_sum_of_squares(tensor_of({0.5, 0.5}, {2}, DType::F32, device()), sum);
  ops::add_sum_of_squares(Tensor::empty({0}, DType::F32, device()), sum);
  EXPECT_EQ(to_doubles(sum)[0], 100 + 14 + 0.5);
}

TEST_P(StepOpsTest, FiniteStepIsNormalizedAndClipped) {
  // The summed loss is 8 over 4 targets; the gradient of its mean has the norm sqrt(400) / 4 = 5.
  const Numbers free = decide(8, 4, 400);
  EXPECT_EQ(free, (Numbers{2, 4, 5, 0.25, 0}));
  const Numbers clipped = decide(8, 4, 400, {.clip_grad = 1});
  EXPECT_DOUBLE_EQ(clipped[StepScalars::kFactor], 0.25 / (5 + 1e-6));
  EXPECT_EQ(decide(8, 4, 400, {.clip_grad = 10})[StepScalars::kFactor], 0.25);
  EXPECT_EQ(decide(8, 4, 400, {.grad_scale = 0.5})[StepScalars::kGradNorm], 2.5);
  EXPECT_EQ(decide(8, 4, 2)[StepScalars::kGradNorm], static_cast<double>(static_cast<float>(std::sqrt(2.0) / 4)));
  EXPECT_EQ(decide(8, 4, 2, {.round_norm_to_fp32 = false})[StepScalars::kGradNorm], std::sqrt(2.0) / 4);
}

TEST_P(StepOpsTest, NonFiniteStepIsNotApplied) {
  for (const double bad : {kNan, kInf, -kInf}) {
    for (const Numbers& x :
         {decide(bad, 4, 400), decide(8, 4, std::abs(bad)), decide(8, 4, bad), decide(bad, 4, bad)}) {
      EXPECT_EQ(x[StepScalars::kFactor], kInf);
      EXPECT_EQ(verdict(x), StepStatus::NotFinite);
      for (const double number : x) EXPECT_FALSE(std::isnan(number)) << "no maximum over ranks could be relied on";
    }
    EXPECT_EQ(decide(bad, 4, 400)[StepScalars::kLoss], kInf);
    EXPECT_EQ(decide(8, 4, -std::abs(bad))[StepScalars::kGradNorm], kInf);
    EXPECT_EQ(decide(bad, bad, 400)[StepScalars::kTargets], 0);
  }
  EXPECT_EQ(verdict(decide(0, 0, 0)), StepStatus::Fine) << "a batch without targets";
  EXPECT_EQ(decide(0, 0, 0)[StepScalars::kLoss], 0);
  EXPECT_EQ(verdict(decide(8, 1, 1e300)), StepStatus::NotFinite) << "a norm that fp32 cannot hold";
}

TEST_P(StepOpsTest, DetectsSpikesAboveLimit) {
  const StepRule rule{.max_loss = 2, .max_grad_norm = 5};
  EXPECT_EQ(verdict(decide(8, 4, 400, rule)), StepStatus::Fine) << "not above";
  for (const Numbers& x : {decide(9, 4, 400, rule), decide(8, 4, 500, rule)}) {
    EXPECT_EQ(verdict(x), StepStatus::Spike);
    EXPECT_EQ(x[StepScalars::kFactor], 0.25) << "spikes are only reported";
  }
  StepRule skipping = rule;
  skipping.should_skip_spikes = true;
  EXPECT_EQ(decide(9, 4, 400, skipping)[StepScalars::kFactor], kInf);
  EXPECT_EQ(decide(8, 4, 400, skipping)[StepScalars::kFactor], 0.25);
  EXPECT_EQ(verdict(decide(kNan, 4, 400, skipping)), StepStatus::NotFinite);
}

TEST_P(StepOpsTest, UpdatesReadFactorFromDevice) {
  const Numbers w0 = normals(100, 1, DType::F32), g0 = normals(100, 2, DType::F32);
  const auto adamw = [&](const AdamWStep& step) {
    Tensor w = tensor_of(w0, {100}, DType::F32, device()), m = tensor_of(w0, {100}, DType::F32, device()),
           v = tensor_of(Numbers(100, 0.5), {100}, DType::F32, device()),
           model = tensor_of(w0, {100}, DType::BF16, device());
    ops::adamw(w, m, v, tensor_of(g0, {100}, DType::F32, device()), step, &model);
    return std::vector{to_doubles(w), to_doubles(m), to_doubles(v), to_doubles(model)};
  };
  const auto sgd = [&](const SgdStep& step) {
    Tensor w = tensor_of(w0, {100}, DType::F32, device()), buffer = tensor_of(w0, {100}, DType::F32, device());
    ops::sgd(w, buffer, tensor_of(g0, {100}, DType::F32, device()), step, nullptr);
    return std::vector{to_doubles(w), to_doubles(buffer)};
  };
  EXPECT_EQ(adamw({.lr = 0.1, .grad_scale = 0.5, .factor = f64({0.25})}), adamw({.lr = 0.1, .grad_scale = 0.125}));
  EXPECT_EQ(sgd({.lr = 0.1, .momentum = 0.9, .factor = f64({0.25})}),
            sgd({.lr = 0.1, .momentum = 0.9, .grad_scale = 0.25}));
  for (const double none : {kInf, -kInf, kNan}) {
    const auto after = adamw({.lr = 0.1, .weight_decay = 0.1, .factor = f64({none})});
    EXPECT_EQ(after[0], w0);
    EXPECT_EQ(after[1], w0);
    EXPECT_EQ(after[2], Numbers(100, 0.5));
    EXPECT_EQ(after[3], to_doubles(tensor_of(w0, {100}, DType::BF16, device())));
    EXPECT_EQ(sgd({.lr = 0.1, .weight_decay = 0.1, .factor = f64({none})}), (std::vector{w0, w0}));
  }
}

TEST_P(StepOpsTest, LossesOfRowsAndTotalsMatchReference) {
  for (const DType type : {DType::F32, DType::F64}) {
    const Numbers largest = normals(50, 1, type, 3), hit = normals(50, 2, type, 3);
    Numbers sums = normals(50, 3, type), losses, lse;
    std::vector<i32> targets;
    double total = 0, count = 0;
    for (std::size_t r = 0; r < 50; ++r) {
      sums[r] = rounded(1 + std::abs(sums[r]), type);
      targets.push_back(r % 3 == 1 ? -1 : static_cast<i32>(r));
      lse.push_back(largest[r] + std::log(sums[r]));
      losses.push_back(targets[r] < 0 ? 0 : lse[r] - hit[r]);
      total += losses[r], count += targets[r] >= 0;
    }
    Tensor in_out = tensor_of(largest, {50}, type, device()), out = garbage({50}, type, device()),
           totals = garbage({2}, DType::F64, device());
    ops::cross_entropy_losses(in_out, tensor_of(sums, {50}, type, device()), tensor_of(hit, {50}, type, device()),
                              integers_of(targets, device()), out, totals);
    expect_close(in_out, lse, tolerance(type), 3, "lse");
    expect_close(out, losses, tolerance(type), 3, "losses");
    expect_close(totals, {total, count}, tolerance(type), 50, "totals");
    double sum = 0;
    for (const double loss : to_doubles(out)) sum += loss;
    if (GetParam() == DeviceType::Cpu) {
      EXPECT_EQ(to_doubles(totals)[0], sum) << "in the order of rows";
    }
  }
}

TEST_P(StepOpsTest, SumsOfExponentialsOfRanksAddUp) {
  const Numbers own{1, 5, -2}, all{4, 5, -2}, sums{2, 3, 4};
  Tensor sum = tensor_of(sums, {3}, DType::F64, device());
  ops::cross_entropy_rescale(f64(own), f64(all), sum);
  expect_close(sum, {2 * std::exp(-3.0), 3, 4}, 1e-15, 0, "sums");
}

TEST_P(StepOpsTest, ReadbackHoldsValuesFromItsStart) {
  const auto copy = make_async_readback(device(), 2);
  Tensor t = f64({1, 2});
  copy->start(t);
  write_values(std::vector<double>{3, 4}, t);
  EXPECT_EQ(copy->values(), (Numbers{1, 2}));
  copy->start(t);
  EXPECT_EQ(copy->values(), (Numbers{3, 4}));
  EXPECT_THROW(copy->start(f64({1, 2, 3})), Error);
}

TEST_P(StepOpsTest, RejectsWrongTypesAndSizes) {
  Tensor wrong = tensor_of({1}, {1}, DType::F32, device()), two = f64({1, 2}), result = f64(Numbers(5, 0));
  EXPECT_THROW(ops::add_sum_of_squares(two, wrong), Error);
  EXPECT_THROW(ops::compute_update_scale(two, two, {}, result), Error);
  EXPECT_THROW(ops::compute_update_scale(two, f64({1}), {}, two), Error);
  Tensor w = f64({1}), m = f64({1}), v = f64({1});
  EXPECT_THROW(ops::adamw(w, m, v, f64({1}), {.factor = two}, nullptr), Error);
}

}  // namespace
}  // namespace mcpp::test::step_test
