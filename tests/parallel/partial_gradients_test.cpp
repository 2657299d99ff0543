#include "parallel/partial_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>

#include "comm/local.h"
#include "parallel/dp/zero.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

/// Parameters of one tensor-parallel rank: one of each kind per unit.
struct Chunk {
  Chunk(int units, DType dtype, Device& device, const DataParallelGroups& dp, int zero_stage, int tp_rank) {
    std::vector<UnitParam> list;
    const auto add = [&](int unit, i64 count, const AxisPlacement& tp) {
      Param& param = params.emplace_back(str("p", params.size()), Shape{count}, Init::Zeros);
      param.placement.tp = tp;
      list.push_back({&param, unit});
    };
    for (int unit = 0; unit < units; ++unit) {
      add(unit, 70, {Spread::Shard});
      add(unit, 5, {Spread::Partial});
      add(unit, 33, {Spread::Partial, Holders{.first = tp_rank / 2 * 2, .count = 2}});
      add(unit, 9, {Spread::Replicate});
      add(unit, 130, {Spread::Partial});
    }
    memory = make_param_and_grad_buffer(list, dtype, device, dp, {.zero_stage = zero_stage, .bucket_size = 64});
  }

  /// Runs backward of one microbatch: element i of every gradient is `value` x (i + 1).
  void backward(int units, float value) {
    memory->clear_grads();
    for (int unit = units - 1; unit >= 0; --unit) {
      memory->acquire(unit, Use::Backward);
      auto param = std::next(params.begin(), unit * 5);
      for (int i = 0; i < 5; ++i, ++param) {
        param->add_grad([&](Tensor& sum, float) {
          for (i64 k = 0; k < param->numel(); ++k) sum.data<float>()[k] = value * static_cast<float>(k + 1);
        });
      }
      memory->release(unit, Use::Backward, true);
    }
  }

  std::list<Param> params;
  std::unique_ptr<ParamAndGradBuffer> memory;
};

void expect_sums(const Chunk& chunk, int tp_rank, int tp_size, float dp_size) {
  chunk.memory->visit_grads([&](const Param& param, i64 first, const Tensor& grads) {
    float sum = 0;  // 1, 10, 100 ... summed over the ranks with a copy
    for (int rank = 0; rank < tp_size; ++rank) {
      const AxisPlacement& tp = param.placement.tp;
      const bool counts =
          tp.spread == Spread::Partial ? tp.is_first(rank / tp.copies(tp_size) * tp.copies(tp_size)) : rank == tp_rank;
      if (counts) sum += static_cast<float>(std::pow(10, rank));
    }
    for (i64 k = 0; k < grads.numel(); ++k)
      ASSERT_EQ(grads.data<float>()[k], dp_size * sum * static_cast<float>(first + k + 1)) << param.name << " " << k;
  });
}

TEST(PartialGradientsTest, AreSummedOverRanksWithCopies) {
  run_local_ranks(4, [](Communicator& tp, int rank) {
    CpuDevice device;
    const auto self = make_self_communicator();
    Chunk first(2, DType::F32, device, {*self, *self}, 0, rank), second(1, DType::F32, device, {*self, *self}, 0, rank);
    PartialGradients partial(std::array{first.memory.get(), second.memory.get()}, {tp});
    for (int step = 0; step < 2; ++step) {
      first.backward(2, static_cast<float>(std::pow(10, rank)));
      second.backward(1, static_cast<float>(std::pow(10, rank)));
      partial.finish();
      expect_sums(first, rank, 4, 1);
      expect_sums(second, rank, 4, 1);
    }
  });
}

TEST(PartialGradientsTest, AreSummedInEveryShard) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_local_ranks(4, [&](Communicator& world, int rank) {
      CpuDevice device;
      const auto self = make_self_communicator(), tp = world.split(rank / 2, rank), dp = world.split(rank % 2, rank);
      Chunk chunk(3, DType::BF16, device, {*dp, *self}, stage, tp->rank());
      PartialGradients partial(std::array{chunk.memory.get()}, {*tp});
      chunk.backward(3, static_cast<float>(std::pow(10, tp->rank())));
      partial.finish();
      expect_sums(chunk, tp->rank(), 2, 2);
    });
  }
}

/// Returns the error of PartialGradients for a parameter with this placement on one rank of a tensor-parallel group of
/// 2.
std::string refusal(const Placement& placement, Communicator& tp, Communicator* embedding = nullptr) {
  CpuDevice device;
  const auto self = make_self_communicator();
  Param param("decoder.some.weight", Shape{4}, Init::Ones);
  param.placement = placement;
  const std::vector<UnitParam> list{{&param, 0}};
  const auto memory = make_param_and_grad_buffer(list, DType::F32, device, {*self, *self}, {});
  return test::error_of([&] { PartialGradients(std::array{memory.get()}, {tp, embedding}); });
}

TEST(PartialGradientsTest, RejectParametersWithoutReductionGroup) {
  run_local_ranks(2, [](Communicator& tp, int) {
    const AxisPlacement partial{Spread::Partial}, two_stages{Spread::Partial, Holders{.first = 0, .count = 2}};
    EXPECT_EQ(refusal({.tp = partial}, tp), "");
    EXPECT_CONTAINS(refusal({.ep = partial}, tp), "decoder.some.weight is placed Partial along ep");
    EXPECT_CONTAINS(refusal({.pp = two_stages}, tp), "Partial along pp on 2 ranks");
    EXPECT_EQ(refusal({.pp = two_stages}, tp, &tp), "");
    const AxisPlacement three{Spread::Partial, Holders{.first = 0, .count = 3}};
    EXPECT_CONTAINS(refusal({.tp = three}, tp), "held by 3 of 2 ranks");
    EXPECT_CONTAINS(refusal({.pp = three}, tp, &tp), "but gradients are summed over 2");
    const AxisPlacement others{Spread::Partial, Holders{.first = 2, .count = 2}};
    EXPECT_CONTAINS(refusal({.tp = others}, tp), "not neighbors of rank");
  });
}

/// Two grids over the same four ranks: gradients of each are summed and sharded over their own groups.
TEST(ChunkParamBuffersTest, HasOneBufferPerGrid) {
  for (const int stage : {0, 1, 2, 3}) {
    run_local_ranks(4, [&](Communicator& world, int rank) {
      CpuDevice device;
      const auto pair = world.split(rank % 2, rank), self = make_self_communicator();
      std::list<Param> params;
      std::vector<UnitParam> list;
      for (const int unit : {0, 1}) {
        list.push_back({&params.emplace_back(str("dense", unit), Shape{5}, Init::Zeros), unit});
        list.push_back({&params.emplace_back(str("expert", unit), Shape{7}, Init::Zeros), unit});
        params.back().placement.grid = GridKind::Expert;
      }
      const ChunkParamBuffers memory(
          list, DType::F32, device,
          [&](GridKind grid) {
            return grid == GridKind::Dense ? DataParallelGroups{world, *self} : DataParallelGroups{*pair, *self};
          },
          {.zero_stage = stage});
      ASSERT_EQ(memory.buffers().size(), 2U);
      memory.clear_grads();
      for (const int unit : {1, 0}) {
        memory.acquire(unit, Use::Backward);
        for (const UnitParam& p : list) {
          if (p.unit != unit) continue;
          p.param->add_grad([&](Tensor& sum, float) {
            std::fill_n(sum.data<float>(), p.param->numel(), static_cast<float>(std::pow(10, rank)));
          });
        }
        memory.release(unit, Use::Backward, true);
      }
      for (ParamAndGradBuffer* buffer : memory.buffers()) buffer->finish();
      i64 parts = 0;
      memory.visit_grads([&](const Param& param, i64, const Tensor& grads) {
        const float expected = param.placement.grid == GridKind::Dense ? 1111 : rank % 2 == 0 ? 101 : 1010;
        for (i64 i = 0; i < grads.numel(); ++i) EXPECT_EQ(grads.data<float>()[i], expected) << param.name;
        parts += grads.numel();
      });
      Tensor held = Tensor::empty({1}, DType::F64, device);
      held.data<double>()[0] = static_cast<double>(parts);
      world.all_reduce(held, ReduceOp::Sum).wait();
      EXPECT_EQ(held.data<double>()[0], stage == 0 ? 4 * 24 : 10 + 2 * 14) << "stage " << stage;
    });
  }
}

TEST(ChunkParamBuffersTest, RejectsParametersThatWouldBeSummedWrongly) {
  CpuDevice device;
  const auto self = make_self_communicator();
  Param param("router.weight", Shape{4}, Init::Ones);
  const std::vector<UnitParam> list{{&param, 0}};
  const auto refusal = [&](const Placement& placement) {
    param.placement = placement;
    return test::error_of([&] {
      ChunkParamBuffers(list, DType::F32, device, [&](GridKind) { return DataParallelGroups{*self, *self}; }, {});
    });
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_CONTAINS(refusal({.dp = {Spread::Replicate}}), "router.weight is placed Replicate along dp");
  EXPECT_CONTAINS(refusal({.cp = {Spread::Shard}}), "router.weight is placed Shard along cp");
}

}  // namespace
}  // namespace mcpp
