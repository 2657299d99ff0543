#include "optimizer/norm_scope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <list>

#include "comm/local.h"
#include "optimizer/optimizer.h"

namespace mcpp {
namespace {

/// Two tensor-parallel ranks times two stages times two data-parallel ranks: every element of the model counts once,
/// whatever holds it. Gradients are all ones, so that the square of the norm is the number of elements times dp^2.
TEST(NormScope, CountsEveryElementOnce) {
  for (const int zero_stage : {0, 1, 2, 3}) {
    run_local_ranks(8, [&](Communicator& world, int rank) {
      const int tp_rank = rank % 2, dp_rank = rank / 2 % 2, stage = rank / 4;
      const auto model = world.split(dp_rank, 0), dp = world.split(stage * 2 + tp_rank, 0);
      const auto tied = world.split(rank % 4, 0), self = make_self_communicator();
      CpuDevice device;
      std::list<Param> params;
      params.emplace_back("tied", Box{{20, 4}, {10 * tp_rank, 0}, {10, 4}}, Init::Normal);
      params.emplace_back(str("norm", stage), Shape{7}, Init::Ones).tp_copies = 2;
      params.emplace_back(str("weight", stage), Box{{6, 5}, {3 * tp_rank, 0}, {3, 5}}, Init::Normal);
      std::vector<UnitParam> list;
      for (Param& p : params) list.push_back({&p, p.name == "tied" ? 0 : 1, p.name == "tied" ? tied.get() : nullptr});
      const auto buffer =
          make_param_and_grad_buffer(list, DType::F32, device, {*dp, *self}, {.zero_stage = zero_stage});
      ParamAndGradBuffer* const buffers[]{buffer.get()};
      Optimizer optimizer(buffers, OptimizerConfig{},
                          make_norm_scope(*model, zero_stage >= 1 ? dp.get() : nullptr, tp_rank,
                                          [&](const Param& p) { return stage > 0 && p.name == "tied"; }));
      buffer->clear_grads();
      for (const int unit : {1, 0}) {
        buffer->acquire(unit, Use::Backward);
        for (const UnitParam& p : list) {
          if (p.unit != unit) continue;
          p.param->take_beta();
          std::fill_n(p.param->main_grad.data<float>(), p.param->numel(), p.tied ? 0.5f : 1.0f);  // both stages have it
        }
        buffer->release(unit, Use::Backward, true);
      }
      buffer->finish();
      const double elements = 20 * 4 + 2 * 7 + 2 * 6 * 5;
      EXPECT_NEAR(optimizer.step(0, 0).grad_norm, 2 * std::sqrt(elements), 1e-5) << "stage " << zero_stage;
    });
  }
}

TEST(NormScope, CountsAllParametersOfASingleRank) {
  const auto self = make_self_communicator();
  const NormScope scope = make_norm_scope(*self, nullptr, 0);
  EXPECT_EQ(scope.groups, std::vector<Communicator*>{self.get()});
  EXPECT_TRUE(scope.counts(Param("w", Shape{2}, Init::Ones)));
}

/// Keys and values of fewer groups than ranks: neighbours share a box.
TEST(NormScope, CountsTheFirstOfTheRanksThatShareABox) {
  const auto self = make_self_communicator();
  Param shared("kv", Shape{2}, Init::Ones);
  shared.tp_copies = 2;
  for (int tp_rank = 0; tp_rank < 4; ++tp_rank) {
    EXPECT_EQ(make_norm_scope(*self, nullptr, tp_rank).counts(shared), tp_rank % 2 == 0);
  }
}

}  // namespace
}  // namespace mcpp
