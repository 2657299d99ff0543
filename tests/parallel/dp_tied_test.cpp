// A parameter held by two pipeline stages, each of which has two data-parallel ranks.
#include <gtest/gtest.h>

#include <array>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/dp/zero.h"
#include "parallel/partial_gradients.h"
#include "parallel/reduce_scalar.h"
#include "tests/support/layouts/dp_toy.h"

namespace mcpp {
namespace {

using test::made_up_grad;

constexpr i64 kTied = 101;
const AxisPlacement kTwoStages{Spread::Partial, Holders{.first = 0, .count = 2, .stride = 1}};

/// The first stage holds the tied parameter and two layers, the last stage a layer and the tied parameter.
struct Stage {
  explicit Stage(bool is_first) {
    if (is_first) params.emplace_back("tied", Shape{kTied}, Init::Normal);
    for (int i = 0; i < (is_first ? 2 : 1); ++i) {
      params.emplace_back(str(is_first ? "first" : "last", i), Shape{20, 5 + i}, Init::Normal);
    }
    if (!is_first) params.emplace_back("tied", Shape{kTied}, Init::Normal);
    for (Param& param : params) {
      if (param.name == "tied") param.placement.pp = kTwoStages;
    }
  }
  std::vector<UnitParam> unit_params() {
    std::vector<UnitParam> list;
    for (int unit = 0; Param & param : params) list.push_back({&param, unit++});
    return list;
  }

  std::list<Param> params;
};

/// Runs backward on rank 2 * stage + d of the world, which has its own gradients.
void run_backward(Stage& stage, ParamAndGradBuffer& buffer, int rank, int microbatch, bool last) {
  int unit = static_cast<int>(stage.params.size());
  for (auto param = stage.params.rbegin(); param != stage.params.rend(); ++param) {
    buffer.acquire(--unit, Use::Backward);
    param->add_grad([&](Tensor& sum, float beta) {
      float* grad = sum.data<float>();
      for (i64 i = 0; i < param->numel(); ++i)
        grad[i] = (beta == 0 ? 0 : grad[i]) + made_up_grad(0, microbatch, rank, 0, param->name, i);
    });
    buffer.release(unit, Use::Backward, last && param->placement.pp.spread == Spread::Shard);
  }
}

float expected_sum(const Param& param, i64 i, int rank, int microbatches, int zero_stage) {
  const auto g = [&](int r, int m) { return made_up_grad(0, m, r, 0, param.name, i); };
  const auto own = [&](int r) {
    float sum = g(r, 0);
    for (int m = 1; m < microbatches; ++m) sum += g(r, m);
    return sum;
  };
  const auto passes = [&](int first) {  // sum over data-parallel ranks `first` and the next, pass by pass
    float sum = g(first, 0) + g(first + 1, 0);
    for (int m = 1; m < microbatches; ++m) sum += g(first, m) + g(first + 1, m);
    return sum;
  };
  const int first = rank / 2 * 2;
  if (param.name != "tied") return zero_stage >= 2 ? passes(first) : own(first) + own(first + 1);
  if (zero_stage >= 2) return passes(0) + passes(2);
  return (own(0) + own(2)) + (own(1) + own(3));
}

class TiedParamsTest : public testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(TiedParamsTest, AreReducedOverStages) {
  const auto& [zero, count, overlapping] = GetParam();
  run_local_ranks(4, [zero_stage = zero, microbatches = count, overlap = overlapping](Communicator& world, int rank) {
    const auto dp = world.split(rank / 2, 0), tied = world.split(rank % 2, 0), self = make_self_communicator();
    CpuDevice device;
    Stage stage(rank < 2);
    const auto buffer =
        make_param_and_grad_buffer(stage.unit_params(), DType::F32, device, {*dp, *self},
                                   {.zero_stage = zero_stage, .bucket_size = 1, .overlap_grad_reduce = overlap});
    PartialGradients partial(std::array{buffer.get()}, {*self, tied.get()});
    for (int step = 0; step < 2; ++step) {
      buffer->clear_grads();
      for (int m = 0; m < microbatches; ++m) run_backward(stage, *buffer, rank, m, m + 1 == microbatches);
      partial.finish();
      i64 elements = 0;
      buffer->visit_grads([&](Param& param, i64 begin, Tensor grads) {
        if (param.name == "tied") elements += grads.numel();
        for (i64 i = 0; i < grads.numel(); ++i) {
          ASSERT_EQ(grads.data<float>()[i], expected_sum(param, begin + i, rank, microbatches, zero_stage))
              << param.name << "[" << begin + i << "]";
        }
      });
      const double all = reduce_scalar(static_cast<double>(elements), ReduceOp::Sum, *dp, device);
      EXPECT_EQ(all, kTied * (zero_stage == 0 ? 2 : 1));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, TiedParamsTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(1, 3), testing::Bool()));

/// A stage that does not use the parameter adds nothing, not even values of an earlier step.
TEST(TiedParamTest, UnusedGradientAddsNothing) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      const auto self = make_self_communicator();
      CpuDevice device;
      Stage stage(rank == 0);
      const auto buffer = make_param_and_grad_buffer(stage.unit_params(), DType::F32, device, {*self, *self},
                                                     {.zero_stage = zero_stage, .bucket_size = 1});
      PartialGradients partial(std::array{buffer.get()}, {*self, &world});
      for (const bool both : {true, false}) {
        buffer->clear_grads();
        if (both || rank == 1) run_backward(stage, *buffer, rank, 0, true);
        partial.finish();
        buffer->visit_grads([&](Param& param, i64, Tensor grads) {
          if (param.name != "tied") return;
          const float first = made_up_grad(0, 0, 0, 0, "tied", 0), second = made_up_grad(0, 0, 1, 0, "tied", 0);
          EXPECT_EQ(grads.data<float>()[0], both ? first + second : second);
        });
      }
    });
  }
}

/// Only the bucket of the tied parameter has to wait for finish().
TEST(TiedParamTest, IsNotReducedBeforeFinish) {
  run_local_ranks(4, [&](Communicator& world, int rank) {
    const auto meter = std::make_shared<CommMeter>();
    const auto dp = make_metered(world.split(rank / 2, 0), meter);
    const auto tied = world.split(rank % 2, 0), self = make_self_communicator();
    CpuDevice device;
    Stage stage(rank < 2);
    const auto buffer = make_param_and_grad_buffer(stage.unit_params(), DType::F32, device, {*dp, *self},
                                                   {.zero_stage = 1, .bucket_size = 1});
    PartialGradients partial(std::array{buffer.get()}, {*self, tied.get()});
    buffer->clear_grads();
    run_backward(stage, *buffer, rank, 0, true);
    const auto buckets = static_cast<i64>(stage.params.size());
    EXPECT_EQ((*meter)[CommOp::ReduceScatter].calls, buckets - 1);
    partial.finish();
    EXPECT_EQ((*meter)[CommOp::ReduceScatter].calls, buckets);
  });
}

TEST(TiedParamTest, RequiresOwnUnitWhenShardsAreReduced) {
  run_local_ranks(2, [](Communicator& world, int) {
    const auto self = make_self_communicator();
    CpuDevice device;
    Param tied("tied", Shape{4}, Init::Ones), other("other", Shape{4}, Init::Ones);
    tied.placement.pp = kTwoStages;
    const auto make = [&](const std::vector<UnitParam>& list, int zero_stage) {
      const auto buffer =
          make_param_and_grad_buffer(list, DType::F32, device, {*self, *self}, {.zero_stage = zero_stage});
      PartialGradients(std::array{buffer.get()}, {*self, &world});
    };
    EXPECT_THROW(make({{&tied, 0}, {&other, 0}}, 2), Error);
    EXPECT_THROW(make({{&other, 1}, {&tied, 1}}, 3), Error);
    EXPECT_NO_THROW(make({{&tied, 0}, {&other, 1}}, 2));
    EXPECT_NO_THROW(make({{&tied, 0}, {&other, 0}}, 1));
  });
}

}  // namespace
}  // namespace mcpp
