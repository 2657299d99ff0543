#include "parallel/partial_gradients.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <list>

#include "comm/local.h"

namespace mcpp {
namespace {

/// Parameters of one rank of tp: one of each kind per unit.
struct Chunk {
  Chunk(int units, DType dtype, Device& device, const DataParallelGroups& dp, int zero_stage, int tp_size) {
    std::vector<UnitParam> list;
    const auto add = [&](int unit, i64 count, int copies, bool partial) {
      Param& param = params.emplace_back(str("p", params.size()), Shape{count}, Init::Zeros);
      param.tp_copies = copies;
      param.grad_is_partial = partial;
      list.push_back({&param, unit});
    };
    for (int unit = 0; unit < units; ++unit) {
      add(unit, 70, 1, false);
      add(unit, 5, tp_size, true);
      add(unit, 33, 2, true);
      add(unit, 9, tp_size, false);
      add(unit, 130, tp_size, true);
    }
    memory = make_param_and_grad_buffer(list, dtype, device, dp, {.zero_stage = zero_stage, .bucket_elements = 64});
  }

  /// Backward of one microbatch: element i of every gradient is `value` x (i + 1).
  void backward(int units, float value) {
    memory->clear_grads();
    for (int unit = units - 1; unit >= 0; --unit) {
      memory->acquire(unit, Use::Backward);
      auto param = std::next(params.begin(), unit * 5);
      for (int i = 0; i < 5; ++i, ++param) {
        param->take_beta();
        for (i64 k = 0; k < param->numel(); ++k) param->main_grad.data<float>()[k] = value * static_cast<float>(k + 1);
      }
      memory->release(unit, Use::Backward, true);
    }
    memory->finish();
  }

  std::list<Param> params;
  std::unique_ptr<ParamAndGradBuffer> memory;
};

void expect_sums(const Chunk& chunk, int tp_rank, int tp_size, float dp_size) {
  chunk.memory->visit_grads([&](const Param& param, i64 first, const Tensor& grads) {
    float sum = 0;  // over the ranks with a copy of 1, 10, 100 ...
    for (int rank = 0; rank < tp_size; ++rank) {
      const bool counts = param.grad_is_partial ? rank / param.tp_copies == tp_rank / param.tp_copies : rank == tp_rank;
      if (counts) sum += static_cast<float>(std::pow(10, rank));
    }
    for (i64 k = 0; k < grads.numel(); ++k)
      ASSERT_EQ(grads.data<float>()[k], dp_size * sum * static_cast<float>(first + k + 1)) << param.name << " " << k;
  });
}

TEST(PartialGradients, AreSummedOverTheRanksWithACopy) {
  run_local_ranks(4, [](Communicator& tp, int rank) {
    CpuDevice device;
    const auto self = make_self_communicator();
    Chunk first(2, DType::F32, device, {*self, *self}, 0, 4), second(1, DType::F32, device, {*self, *self}, 0, 4);
    PartialGradients partial(std::array{first.memory.get(), second.memory.get()}, tp);
    for (int step = 0; step < 2; ++step) {
      first.backward(2, static_cast<float>(std::pow(10, rank)));
      second.backward(1, static_cast<float>(std::pow(10, rank)));
      partial.reduce();
      expect_sums(first, rank, 4, 1);
      expect_sums(second, rank, 4, 1);
    }
  });
}

TEST(PartialGradients, AreSummedInEveryShard) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_local_ranks(4, [&](Communicator& world, int rank) {
      CpuDevice device;
      const auto self = make_self_communicator(), tp = world.split(rank / 2, rank), dp = world.split(rank % 2, rank);
      Chunk chunk(3, DType::BF16, device, {*dp, *self}, stage, 2);
      PartialGradients partial(std::array{chunk.memory.get()}, *tp);
      chunk.backward(3, static_cast<float>(std::pow(10, tp->rank())));
      partial.reduce();
      expect_sums(chunk, tp->rank(), 2, 2);
    });
  }
}

}  // namespace
}  // namespace mcpp
