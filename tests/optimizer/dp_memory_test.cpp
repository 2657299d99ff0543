// Bytes per parameter at each ZeRO stage, as counted by the device, against the formulas of docs/data_parallelism.md.
#include <gtest/gtest.h>

#include <list>

#include "comm/local.h"
#include "optimizer/optimizer.h"
#include "parallel/dp/zero.h"

namespace mcpp {
namespace {

constexpr int kUnits = 8;

/// Units of one matrix and one bias, with sizes that are not powers of two.
struct Model {
  Model() {
    for (int unit = 0; unit < kUnits; ++unit) {
      list.push_back({&params.emplace_back(str(unit, ".weight"), Shape{150, 210}, Init::Normal), unit});
      list.push_back({&params.emplace_back(str(unit, ".bias"), Shape{150}, Init::Zeros), unit});
    }
  }
  i64 numel() const {
    i64 sum = 0;
    for (const Param& param : params) sum += param.numel();
    return sum;
  }

  std::list<Param> params;
  std::vector<UnitParam> list;
};

const MemoryUse& use_of(const Device& device, MemoryClass c) {
  return device.memory().by_class[static_cast<std::size_t>(c)];
}

void run_step(ParamAndGradBuffer& buffer, Optimizer& optimizer) {
  buffer.clear_grads();
  for (int unit = 0; unit < kUnits; ++unit) {
    buffer.acquire(unit, Use::Forward);
    buffer.release(unit, Use::Forward, true);
  }
  for (int unit = kUnits - 1; unit >= 0; --unit) {
    buffer.acquire(unit, Use::Backward);
    buffer.release(unit, Use::Backward, true);
  }
  buffer.finish();
  optimizer.step(1e-3, 0.1);
  buffer.publish();
}

class ZeroMemoryTest : public testing::TestWithParam<std::tuple<int, int, DType, bool>> {};

TEST_P(ZeroMemoryTest, MatchesFormula) {
  const auto& [stage, ranks, dtype, overlap] = GetParam();
  run_local_ranks(ranks, [zero = stage, d = ranks, type = dtype, ahead = overlap](Communicator& world, int rank) {
    const auto self = make_self_communicator();
    CpuDevice device;
    Model model;
    const auto buffer = make_param_and_grad_buffer(
        model.list, type, device, {world, *self},
        {.zero_stage = zero, .bucket_size = 60'000, .overlap_grad_reduce = ahead, .overlap_param_gather = ahead});
    ParamAndGradBuffer* const buffers[]{buffer.get()};
    Optimizer optimizer(buffers, OptimizerConfig{});
    run_step(*buffer, optimizer);
    device.reset_peak();
    const MemoryUse params = use_of(device, MemoryClass::Params), grads = use_of(device, MemoryClass::Grads),
                    state = use_of(device, MemoryClass::OptimizerState);

    const double weight = type == DType::BF16 ? 2 : 4, states = type == DType::BF16 ? 12 : 8;
    const double p = static_cast<double>(model.numel());
    const auto per_param = [&](const MemoryUse& use) { return static_cast<double>(use.bytes) / p; };
    const auto expect_near = [](double measured, double formula) { EXPECT_NEAR(measured / formula, 1, 0.05); };
    expect_near(per_param(params), zero == 3 ? weight / d : weight);
    expect_near(per_param(grads), zero >= 2 ? 4.0 / d : 4.0);
    expect_near(per_param(state), zero >= 1 ? states / d : states);

    // During a step, tensors that are gathered or not yet reduced are added: those of one unit, or of two with overlap.
    run_step(*buffer, optimizer);
    const double units = p / kUnits * (ahead ? 2 : 1);
    const auto expect_extra = [&](MemoryClass c, double formula) {
      const MemoryUse& use = use_of(device, c);
      EXPECT_NEAR(static_cast<double>(use.peak - use.bytes) / units, formula, 0.05 * formula);
    };
    expect_extra(MemoryClass::Params, zero == 3 ? weight : 0);
    expect_extra(MemoryClass::Grads, zero >= 2 ? 4 : 0);
    EXPECT_EQ(use_of(device, MemoryClass::Params).bytes, params.bytes);
    EXPECT_EQ(use_of(device, MemoryClass::Grads).bytes, grads.bytes);
    if (rank == 0) {
      testing::Test::RecordProperty("bytes_per_parameter", str(per_param(params), " + ", per_param(grads), " + ",
                                                               per_param(state), " over ", d, " at ZeRO ", zero));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, ZeroMemoryTest,
                         testing::Combine(testing::Values(0, 1, 2, 3), testing::Values(2, 4, 8),
                                          testing::Values(DType::F32, DType::BF16), testing::Bool()));

}  // namespace
}  // namespace mcpp
