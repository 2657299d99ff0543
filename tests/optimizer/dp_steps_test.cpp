// Training on data-parallel ranks at every ZeRO stage, bitwise against one vector per parameter on one rank.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/local.h"
#include "optimizer/optimizer.h"
#include "parallel/dp/zero.h"
#include "tensor/ops/ops.h"
#include "tests/support/layouts/dp_toy.h"

namespace mcpp::dp_steps_test {
namespace {

using test::DpGroups;
using test::DpLayout;
using test::ToyModel;
using test::ToySum;
using test::ToyTraining;

constexpr int kSteps = 4;
constexpr double kLr = 0.02, kWeightDecay = 0.1, kGradScale = 1.0 / 3;

struct Case {
  DpLayout layout;
  int microbatches;
  DType dtype;
  OptimizerKind kind;
};

OptimizerConfig config_of(OptimizerKind kind) {
  OptimizerConfig config;
  config.optimizer = kind;
  config.clip_grad = 5;  // below the norm of these gradients
  return config;
}

/// Textbook training: each parameter is one vector that is updated as a whole.
class Reference {
 public:
  Reference(const OptimizerConfig& config, DType dtype, const ToySum<float>& sum) : config_(config), sum_(sum) {
    for (const ToyModel::Entry& e : model_.entries) {
      const auto vector = [&](DType type) { return Tensor::zeros({e.param.numel()}, type, device_); };
      constexpr DType kF32 = DType::F32;
      Vector v{&e.param, vector(dtype), vector(kF32), vector(kF32), vector(kF32), vector(kF32)};
      initialize(e.param, 11, 0, v.weight);
      ops::copy(v.weight, v.master);
      vectors_.push_back(v);
    }
  }

  double step(int step) {
    double squares = 0;
    for (Vector& v : vectors_) {
      for (i64 i = 0; i < v.grad.numel(); ++i) {
        const float g = sum_(step, *v.param, i);
        v.grad.data<float>()[i] = g;
        squares += double{g} * g;
      }
    }
    const double norm = static_cast<float>(std::sqrt(squares) * kGradScale);
    const double scale = kGradScale * std::min(1.0, config_.clip_grad / (norm + 1e-6));
    for (Vector& v : vectors_) {
      const double decay = group_of(*v.param, config_).wd_mult * kWeightDecay;
      if (config_.optimizer == OptimizerKind::Sgd) {
        ops::sgd(v.master, v.first, v.grad, {kLr, config_.sgd_momentum, decay, scale}, &v.weight);
      } else {
        ops::adamw(v.master, v.first, v.second, v.grad,
                   {kLr, config_.adam_beta1, config_.adam_beta2, config_.adam_eps, decay, step + 1, scale}, &v.weight);
      }
    }
    return norm;
  }

  void expect_same(const Param& param) const {
    for (const Vector& v : vectors_) {
      if (v.param->name != param.name) continue;
      on_float(param.value.dtype(), [&]<class T>() {
        for (i64 i = 0; i < param.numel(); ++i) {
          ASSERT_EQ(to_double(param.value.data<T>()[i]), to_double(v.weight.data<T>()[i])) << param.name << " " << i;
        }
      });
    }
  }

 private:
  struct Vector {
    const Param* param;
    Tensor weight, master, grad, first, second;
  };

  CpuDevice device_;
  ToyModel model_;
  OptimizerConfig config_;
  ToySum<float> sum_;
  std::vector<Vector> vectors_;
};

class ZeroStepsTest : public testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(ZeroStepsTest, MatchesSingleRankReferenceBitwise) {
  const int stage = std::get<int>(GetParam());
  Case c = std::get<Case>(GetParam());
  if (stage == 0) c.layout = {c.layout.ranks(), 1};  // shards nothing
  run_local_ranks(c.layout.ranks(), [&](Communicator& world, int rank) {
    const DpGroups groups(world, c.layout);
    CpuDevice device;
    ToyModel model;
    const auto buffer = make_param_and_grad_buffer(model.unit_params(), c.dtype, device, groups.refs(),
                                                   {.zero_stage = stage, .bucket_size = 400});
    buffer->visit_weights([](Param& param, i64 first, Tensor values) { initialize(param, 11, first, values); });
    buffer->publish();
    ParamAndGradBuffer* const buffers[]{buffer.get()};
    NormScope scope;  // scope of a model that is not shared with other ranks
    if (stage >= 1) scope.groups[GridKind::Dense] = {groups.shard.get()};
    Optimizer optimizer(buffers, config_of(c.kind), scope);

    Reference reference(config_of(c.kind), c.dtype,
                        {.layout = c.layout, .microbatches = c.microbatches, .reduces_every_microbatch = stage >= 2});
    ToyTraining training{model, *buffer, rank, c.microbatches};
    training.on_forward = [&](const Param& param) { reference.expect_same(param); };
    for (int step = 0; step < kSteps; ++step) {
      training.run_step(step);
      const StepResult result = optimizer.step(kLr, kWeightDecay, kGradScale);
      buffer->publish();
      EXPECT_EQ(result.grad_norm, reference.step(step));
      EXPECT_GT(result.grad_norm, 5) << "clipping is not tested";
    }
    training.forward(true);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ZeroStepsTest,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values(Case{{1, 1}, 1, DType::F32, OptimizerKind::Adam},
                                                          Case{{2, 1}, 1, DType::F32, OptimizerKind::Adam},
                                                          Case{{3, 1}, 2, DType::F32, OptimizerKind::Sgd},
                                                          Case{{4, 1}, 3, DType::F32, OptimizerKind::Adam},
                                                          Case{{2, 2}, 1, DType::F32, OptimizerKind::Adam},
                                                          Case{{2, 2}, 2, DType::BF16, OptimizerKind::Sgd},
                                                          Case{{2, 1}, 2, DType::BF16, OptimizerKind::Adam})));

}  // namespace
}  // namespace mcpp::dp_steps_test
