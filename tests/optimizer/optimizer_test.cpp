#include "optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <random>

#include "parallel/dp/zero.h"
#include "tensor/ops/ops.h"
#include "tests/support/fakes/mirror_communicator.h"

namespace mcpp::optimizer_test {
namespace {

double element(const Tensor& t, i64 i) {
  return on_float(t.dtype(), [&]<class T>() { return to_double(t.data<T>()[i]); });
}

void set_element(const Tensor& t, i64 i, double value) {
  on_float(t.dtype(), [&]<class T>() { t.data<T>()[i] = from_double<T>(value); });
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(t.bytes()));
  std::memcpy(bytes.data(), t.raw(), bytes.size());
  return bytes;
}

/// Small model of two units, with and without weight decay, and its optimizer.
struct Fixture {
  explicit Fixture(DType dtype, const OptimizerConfig& config = {}, NormScope scope = {}) {
    std::vector<UnitParam> list;
    const auto add = [&](const std::string& name, Shape shape, int unit) {
      list.push_back({&params.emplace_back(name, shape, Init::Normal), unit});
    };
    add("embedding.weight", {9, 5}, 0);
    add("norm.weight", {5}, 1);
    add("linear.weight", {5, 6}, 1);
    add("linear.bias", {6}, 1);
    buffer = make_param_and_grad_buffer(list, dtype, device, {*self, *self}, {.bucket_size = 0});
    for (Param& param : params) {
      for (i64 i = 0; i < param.numel(); ++i) set_element(param.value, i, normal(random));
    }
    ParamAndGradBuffer* const buffers[]{buffer.get()};
    optimizer.emplace(buffers, config, std::move(scope));
  }

  /// Writes new gradients of about the given magnitude.
  void make_grads(double size) {
    buffer->clear_grads();
    for (Param& param : params) {
      param.add_grad([&](Tensor& sum, float) {
        for (i64 i = 0; i < param.numel(); ++i) set_element(sum, i, size * normal(random));
      });
    }
    buffer->finish();
  }

  std::vector<std::vector<std::byte>> all_bytes() const {
    std::vector<std::vector<std::byte>> result{bytes_of(buffer->shard()[0].params)};
    optimizer->visit_stored_state(
        [&](std::string_view, Param&, i64, const StoredArray& values) { result.push_back(bytes_of(values.tensor())); });
    return result;
  }

  CpuDevice device;
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::list<Param> params;
  std::unique_ptr<ParamAndGradBuffer> buffer;
  std::optional<Optimizer> optimizer;
  std::mt19937 random{7};
  std::normal_distribution<double> normal;
};

/// Textbook update of every element in double precision, including clipping and decay.
class Reference {
 public:
  Reference(const Fixture& f, const OptimizerConfig& config) : config_(config) {
    for (const Param& param : f.params) {
      for (i64 i = 0; i < param.numel(); ++i) elements_.push_back({.weight = element(param.value, i)});
    }
  }

  double step(const Fixture& f, double lr, double weight_decay, double grad_scale) {
    std::vector<double> grads;
    for (const Param& param : f.params) {
      for (i64 i = 0; i < param.numel(); ++i) grads.push_back(element(param.main_grad, i) * grad_scale);
    }
    double sum = 0;
    for (const double g : grads) sum += g * g;
    const double norm = std::sqrt(sum);
    const double clip = config_.clip_grad > 0 ? std::min(1.0, config_.clip_grad / (norm + 1e-6)) : 1.0;
    ++steps_;
    std::size_t at = 0;
    for (const Param& param : f.params) {
      for (i64 i = 0; i < param.numel(); ++i, ++at) {
        const double decay = group_of(param, config_).wd_mult * weight_decay;
        config_.optimizer == OptimizerKind::Adam ? adamw(elements_[at], grads[at] * clip, lr, decay)
                                                 : sgd(elements_[at], grads[at] * clip, lr, decay);
      }
    }
    return norm;
  }

  /// Returns the largest difference of a weight from the reference, relative to the magnitude of weights (about 1).
  double distance(const Fixture& f) const {
    double worst = 0;
    std::size_t at = 0;
    for (const Param& param : f.params) {
      for (i64 i = 0; i < param.numel(); ++i, ++at) {
        worst = std::max(worst, std::abs(element(param.value, i) - elements_[at].weight));
      }
    }
    return worst;
  }

 private:
  struct Element {
    double weight, m = 0, v = 0;
  };

  void adamw(Element& e, double g, double lr, double decay) const {
    e.m = config_.adam_beta1 * e.m + (1 - config_.adam_beta1) * g;
    e.v = config_.adam_beta2 * e.v + (1 - config_.adam_beta2) * g * g;
    const double m = e.m / (1 - std::pow(config_.adam_beta1, steps_));
    const double v = e.v / (1 - std::pow(config_.adam_beta2, steps_));
    e.weight -= lr * decay * e.weight + lr * m / (std::sqrt(v) + config_.adam_eps);
  }
  void sgd(Element& e, double g, double lr, double decay) const {
    e.m = config_.sgd_momentum * e.m + g + decay * e.weight;
    e.weight -= lr * e.m;
  }

  OptimizerConfig config_;
  std::vector<Element> elements_;
  double steps_ = 0;
};

struct Case {
  OptimizerKind kind;
  DType dtype;
  double tolerance;
};

class OptimizerStepsTest : public testing::TestWithParam<Case> {};

TEST_P(OptimizerStepsTest, MatchesDoublePrecisionReference) {
  OptimizerConfig config;
  config.optimizer = GetParam().kind;
  config.adam_beta2 = 0.95;
  Fixture f(GetParam().dtype, config);
  Reference reference(f, config);
  for (int i = 0; i < 12; ++i) {
    // Every second gradient exceeds the clipping threshold after scaling.
    const double grad_scale = 0.01;
    f.make_grads(i % 2 == 0 ? 100 : 1);
    const double lr = 1e-2 * (i + 1) / 12, weight_decay = 0.1;
    const double norm = reference.step(f, lr, weight_decay, grad_scale);
    const StepResult result = f.optimizer->step(lr, weight_decay, grad_scale);
    EXPECT_FALSE(result.is_skipped);
    EXPECT_NEAR(result.grad_norm / norm, 1, 1e-7);
    EXPECT_LE(reference.distance(f), GetParam().tolerance) << "step " << i;
  }
  EXPECT_EQ(f.optimizer->steps(), 12);
}

INSTANTIATE_TEST_SUITE_P(
    Types, OptimizerStepsTest,
    testing::Values(Case{OptimizerKind::Adam, DType::F64, 1e-12}, Case{OptimizerKind::Adam, DType::F32, 2e-6},
                    // Weights below 4 are rounded to 1/128 in bf16; the tolerance is half of that.
                    Case{OptimizerKind::Adam, DType::BF16, 8e-3}, Case{OptimizerKind::Sgd, DType::F64, 1e-12},
                    Case{OptimizerKind::Sgd, DType::F32, 2e-6}, Case{OptimizerKind::Sgd, DType::BF16, 8e-3},
                    Case{OptimizerKind::Adam, DType::F16, 1e-3}, Case{OptimizerKind::Sgd, DType::F16, 1e-3}));

TEST(OptimizerTest, DoesNotScaleGradientWithoutClipping) {
  OptimizerConfig config;
  config.clip_grad = 0;
  config.optimizer = OptimizerKind::Sgd;  // Adam is almost invariant to the scale of gradients
  Fixture f(DType::F64, config);
  Reference reference(f, config);
  f.make_grads(50);
  reference.step(f, 0.1, 0, 1);
  EXPECT_GT(f.optimizer->step(0.1, 0).grad_norm, 100);
  EXPECT_LE(reference.distance(f), 1e-12);
}

/// Each parameter is updated as by an optimizer with the settings of its group.
TEST(OptimizerTest, UpdatesEachGroupByItsOwnSettings) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    OptimizerConfig config;
    config.clip_grad = 0;
    config.param_group = {
        {.match = OneOrList<std::string>("linear.*"), .lr_mult = 0.25, .wd_mult = 0.5, .adam_beta1 = 0.5},
        {.match = OneOrList<std::string>("*norm.weight"), .wd_mult = 1, .adam_beta2 = 0.9, .adam_eps = 0.1}};
    OptimizerConfig linear, norm, rest;
    linear.clip_grad = norm.clip_grad = rest.clip_grad = 0;
    linear.adam_beta1 = 0.5;
    norm.adam_beta2 = 0.9, norm.adam_eps = 0.1;
    norm.param_group = linear.param_group = {{.match = OneOrList<std::string>("*"), .wd_mult = 1}};
    Fixture grouped(dtype, config), by_linear(dtype, linear), by_norm(dtype, norm), by_rest(dtype, rest);
    for (int i = 0; i < 5; ++i) {
      for (Fixture* f : {&grouped, &by_linear, &by_norm, &by_rest}) f->make_grads(1);
      grouped.optimizer->step(0.01, 0.125);
      by_linear.optimizer->step(0.0025, 0.0625);
      by_norm.optimizer->step(0.01, 0.125);
      by_rest.optimizer->step(0.01, 0.125);
    }
    auto param = grouped.params.begin();
    for (auto a = by_linear.params.begin(), b = by_norm.params.begin(), c = by_rest.params.begin();
         param != grouped.params.end(); ++param, ++a, ++b, ++c) {
      const Param& expected = param->name.starts_with("linear.") ? *a : param->name == "norm.weight" ? *b : *c;
      EXPECT_EQ(bytes_of(param->value), bytes_of(expected.value)) << param->name;
    }
  }
}

TEST(OptimizerTest, KeepsWeightsWithoutLearningRate) {
  OptimizerConfig config;
  config.param_group = {{.match = OneOrList<std::string>("linear.weight"), .lr_mult = 0}};
  Fixture f(DType::F32, config);
  std::map<std::string, std::vector<std::byte>> before;
  for (const Param& param : f.params) before[param.name] = bytes_of(param.value);
  f.make_grads(1);
  f.optimizer->step(0.1, 0.5);
  for (const Param& param : f.params)
    EXPECT_EQ(bytes_of(param.value) == before[param.name], param.name == "linear.weight") << param.name;
}

TEST(OptimizerTest, DecaysOnlyMatrices) {
  Fixture f(DType::F32);
  const std::vector<float> before{static_cast<float>(element(f.params.front().value, 0)),
                                  static_cast<float>(element(f.params.back().value, 0))};
  f.make_grads(0);
  f.optimizer->step(0.1, 0.5);
  EXPECT_FLOAT_EQ(static_cast<float>(element(f.params.front().value, 0)), before[0] * 0.95f);
  EXPECT_EQ(static_cast<float>(element(f.params.back().value, 0)), before[1]);
}

class NonFiniteGradientsTest : public testing::TestWithParam<std::tuple<DType, OptimizerKind, double>> {};

TEST_P(NonFiniteGradientsTest, ChangeNothing) {
  const auto [dtype, kind, poison] = GetParam();
  OptimizerConfig config;
  config.optimizer = kind;
  Fixture f(dtype, config);
  f.make_grads(1);
  f.optimizer->step(1e-2, 0.1);
  const auto before = f.all_bytes();

  f.make_grads(1);
  set_element(f.params.back().main_grad, 3, poison);
  const StepResult result = f.optimizer->step(1e-2, 0.1);
  EXPECT_TRUE(result.is_skipped);
  EXPECT_FALSE(std::isfinite(result.grad_norm));
  EXPECT_EQ(f.all_bytes(), before);
  EXPECT_EQ(f.optimizer->steps(), 1);

  f.make_grads(1);
  EXPECT_FALSE(f.optimizer->step(1e-2, 0.1).is_skipped);
  EXPECT_NE(f.all_bytes(), before);
  EXPECT_EQ(f.optimizer->steps(), 2);
}

INSTANTIATE_TEST_SUITE_P(All, NonFiniteGradientsTest,
                         testing::Combine(testing::Values(DType::F32, DType::BF16, DType::F16, DType::F64),
                                          testing::Values(OptimizerKind::Adam, OptimizerKind::Sgd),
                                          testing::Values(std::numeric_limits<double>::quiet_NaN(),
                                                          std::numeric_limits<double>::infinity(),
                                                          -std::numeric_limits<double>::infinity())));

TEST(OptimizerTest, MasterWeightsAccumulateUpdatesTooSmallForBf16) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Sgd;
  config.sgd_momentum = 0;
  config.clip_grad = 0;
  Fixture f(DType::BF16, config);
  const Tensor weight = f.params.front().value;
  set_element(weight, 0, 1.0);
  f.optimizer->copy_model_to_master();
  for (int i = 0; i < 100; ++i) {
    f.make_grads(0);
    set_element(f.params.front().main_grad, 0, 1e-4);  // 1/256 is the step of bf16 below 1
    f.optimizer->step(1, 0);
    if (i == 0) {
      EXPECT_EQ(element(weight, 0), 1.0);
    }
  }
  EXPECT_NEAR(element(weight, 0), 0.99, 1.0 / 512);
  f.optimizer->visit_stored_state([&](std::string_view state, Param& param, i64 first, const StoredArray& values) {
    if (state != kMasterState || &param != &f.params.front()) return;
    EXPECT_EQ(first, 0);
    EXPECT_NEAR(element(values.tensor(), 0), 0.99, 1e-5);
  });
}

TEST(OptimizerTest, CopiesBetweenModelAndMasterWeights) {
  Fixture f(DType::BF16);
  const Tensor weight = f.params.front().value;
  Tensor master;
  f.optimizer->visit_stored_state([&](std::string_view state, Param& param, i64, const StoredArray& values) {
    if (state == kMasterState && &param == &f.params.front()) master = values.tensor();
  });
  set_element(weight, 2, 0.5);
  f.optimizer->copy_model_to_master();
  EXPECT_EQ(element(master, 2), 0.5);
  set_element(master, 2, 1.0 + 1e-4);
  f.optimizer->copy_master_to_model();
  EXPECT_EQ(element(weight, 2), 1.0);
  EXPECT_NEAR(element(master, 2), 1.0 + 1e-4, 1e-7);
}

TEST(OptimizerTest, VisitsStateOfEveryParameter) {
  const auto layout_tags = [](DType dtype, OptimizerKind kind) {
    OptimizerConfig config;
    config.optimizer = kind;
    Fixture f(dtype, config);
    std::string kinds;
    f.optimizer->visit_stored_state([&](std::string_view state, Param& param, i64 first, const StoredArray& values) {
      EXPECT_EQ(first, 0);
      EXPECT_EQ(values.numel(), param.numel());
      if (param.name == "linear.bias") kinds += str(state, " ");
    });
    return kinds;
  };
  EXPECT_EQ(layout_tags(DType::F32, OptimizerKind::Adam), "exp_avg exp_avg_sq ");
  EXPECT_EQ(layout_tags(DType::BF16, OptimizerKind::Adam), "master exp_avg exp_avg_sq ");
  EXPECT_EQ(layout_tags(DType::BF16, OptimizerKind::Sgd), "master momentum_buffer ");
}

/// State copied to a second optimizer through visit_stored_state and set_steps, as a checkpoint does, must continue
/// bitwise identically.
TEST(OptimizerTest, ContinuesFromCopiedState) {
  Fixture a(DType::BF16), b(DType::BF16);
  for (int i = 0; i < 3; ++i) {
    a.make_grads(1);
    a.optimizer->step(1e-2, 0.1);
  }
  std::vector<Tensor> states;
  a.optimizer->visit_stored_state(
      [&](auto, auto&, i64, const StoredArray& values) { states.push_back(values.tensor()); });
  auto next = states.begin();
  b.optimizer->visit_stored_state([&](auto, auto&, i64, const StoredArray& values) { values.write(*next++); });
  b.optimizer->copy_master_to_model();
  b.optimizer->set_steps(a.optimizer->steps());
  EXPECT_EQ(a.all_bytes(), b.all_bytes());
  b.random = a.random;
  b.normal = a.normal;
  for (Fixture* f : {&a, &b}) {
    f->make_grads(1);
    f->optimizer->step(1e-2, 0.1);
  }
  EXPECT_EQ(a.all_bytes(), b.all_bytes());
}

TEST(OptimizerTest, GradNormExcludesParametersCountedByOtherRanks) {
  const NormScope scope{.groups = {}, .is_counted = [](const Param& p) { return p.name != "norm.weight"; }};
  Fixture f(DType::F64, {}, scope);
  f.make_grads(1);
  double sum = 0;
  for (const Param& param : f.params) {
    if (scope.is_counted(param)) sum += ops::sum_of_squares(param.main_grad);
  }
  EXPECT_NEAR(f.optimizer->step(0, 0).grad_norm, std::sqrt(sum), 1e-12);
}

TEST(OptimizerTest, GradNormIsReducedOverItsGroups) {
  MirrorCommunicator tensor_parallel, pipeline;
  Fixture f(DType::F64, {}, {.groups = {{GridKind::Dense, {&tensor_parallel, &pipeline}}}, .is_counted = {}});
  f.make_grads(1);
  const double alone = std::sqrt(ops::sum_of_squares(f.buffer->shard()[0].grads));
  EXPECT_NEAR(f.optimizer->step(0, 0).grad_norm, 2 * alone, 1e-12);  // four times the sum of squares
}

TEST(OptimizerTest, SpansSeveralBuffers) {
  Fixture one(DType::F64), other(DType::F64);
  ParamAndGradBuffer* const buffers[]{one.buffer.get(), other.buffer.get()};
  Optimizer optimizer(buffers, {});
  one.make_grads(3);
  other.make_grads(4);
  const double sum =
      ops::sum_of_squares(one.buffer->shard()[0].grads) + ops::sum_of_squares(other.buffer->shard()[0].grads);
  const auto before = other.all_bytes();
  EXPECT_NEAR(optimizer.step(0.1, 0).grad_norm, std::sqrt(sum), 1e-12);
  EXPECT_NE(other.all_bytes(), before);
}

}  // namespace
}  // namespace mcpp::optimizer_test
