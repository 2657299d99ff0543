#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "comm/local.h"
#include "optimizer/optimizer.h"
#include "optimizer/param_group.h"
#include "parallel/dp/zero.h"
#include "parallel/partial_gradients.h"

namespace mcpp {
namespace {

/// Two tensor-parallel ranks times two stages times two data-parallel ranks: every element of the model must count
/// once, whichever ranks hold it. Gradients are all ones, so that the square of the norm is the number of elements
/// times dp^2.
TEST(NormScopeTest, CountsEveryElementOnce) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    run_local_ranks(8, [&](Communicator& world, int) {
      const ParallelState parallel = make_parallel_state(world, {.tp = 2, .pp = 2});
      const int tp_rank = parallel.coordinates.tp, stage = parallel.coordinates.pp;
      CpuDevice device;
      std::list<Param> params;
      params.emplace_back("tied", Box{{20, 4}, {10 * tp_rank, 0}, {10, 4}}, Init::Normal).placement.pp = {
          Spread::Partial, Holders{.first = 0, .count = 2, .stride = 1}};
      params.emplace_back(str("norm", stage), Shape{7}, Init::Ones).placement.tp = {Spread::Replicate};
      params.emplace_back(str("weight", stage), Box{{6, 5}, {3 * tp_rank, 0}, {3, 5}}, Init::Normal);
      std::vector<UnitParam> list;
      for (Param& p : params) list.push_back({&p, p.name == "tied" ? 0 : 1});
      const auto buffer = make_param_and_grad_buffer(
          list, DType::F32, device, parallel.gradient_groups(GridKind::Dense), {.zero_stage = zero_stage});
      ParamAndGradBuffer* const buffers[]{buffer.get()};
      Optimizer optimizer(buffers, OptimizerConfig{}, make_norm_scope(parallel, zero_stage > 0));
      PartialGradients partial(buffers, {*parallel.tp, parallel.embedding.get()});
      buffer->clear_grads();
      for (const int unit : {1, 0}) {
        buffer->acquire(unit, Use::Backward);
        for (const UnitParam& p : list) {
          if (p.unit != unit) continue;
          // Both stages hold half of the tied parameter.
          p.param->add_grad(
              [&](Tensor& sum, float) { std::fill_n(sum.data<float>(), p.param->numel(), p.unit == 0 ? 0.5f : 1.0f); });
        }
        buffer->release(unit, Use::Backward, unit > 0);
      }
      partial.finish();
      const double elements = 20 * 4 + 2 * 7 + 2 * 6 * 5;
      EXPECT_NEAR(optimizer.step(0, 0).grad_norm, 2 * std::sqrt(elements), 1e-5) << "stage " << zero_stage;
    });
  }
}

TEST(NormScopeTest, CountsAllParametersOfSingleRank) {
  const auto self = make_self_communicator();
  const ParallelState parallel = make_parallel_state(*self, {});
  const NormScope scope = make_norm_scope(parallel, false);
  EXPECT_EQ(scope.groups.at(GridKind::Dense), std::vector<Communicator*>{parallel.tp_pp.get()});
  EXPECT_TRUE(scope.is_counted(Param("w", Shape{2}, Init::Ones)));
}

/// There are fewer key and value groups than ranks, so that neighboring ranks share a box.
TEST(NormScopeTest, CountsOnlyFirstRankOfSharedBox) {
  run_local_ranks(4, [](Communicator& world, int rank) {
    const ParallelState parallel = make_parallel_state(world, {.tp = 4});
    Param shared("kv", Shape{2}, Init::Ones);
    shared.placement.tp = {Spread::Partial, Holders{.first = rank / 2 * 2, .count = 2}};
    EXPECT_EQ(make_norm_scope(parallel, false).is_counted(shared), rank % 2 == 0);
  });
}

}  // namespace
}  // namespace mcpp
