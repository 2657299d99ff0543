// Gathers of weights in flight: which changes are allowed, and which values a use sees.
#include <gtest/gtest.h>

#include <list>
#include <set>

#include "comm/meta.h"
#include "parallel/dp/zero.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Rank 0 of two, whose peer has the same values. Operations take effect only in wait(), as late as possible, and
/// refuse to write to a range that another pending operation will write.
class LateCommunicator final : public MetaCommunicator {
 public:
  LateCommunicator() : MetaCommunicator(2) {}

  Work all_gather(const Tensor& shard, Tensor& full) override {
    MCPP_CHECK(in_flight_.insert(full.raw()).second, "two gathers into the same tensor");
    return Work([this, shard, full] {
      for (const i64 part : {0, 1}) {
        Tensor target = full.flat(part * shard.numel(), shard.numel());
        if (target.raw() != shard.raw()) ops::copy(shard, target);
      }
      in_flight_.erase(full.raw());
    });
  }
  Work reduce_scatter(const Tensor&, Tensor& shard) override {
    return Work([shard]() mutable { ops::scale(shard, 2); });
  }
  Work all_reduce(Tensor& t, ReduceOp) override {
    return Work([t]() mutable { ops::scale(t, 2); });
  }

 private:
  std::set<const void*> in_flight_;
};

constexpr i64 kUnit = 128;  // elements, without padding
constexpr int kUnits = 4;

struct Fixture {
  Fixture(int stage, Communicator& shard_group) {
    std::vector<UnitParam> list;
    for (int unit = 0; unit < kUnits; ++unit) {
      list.push_back({&params.emplace_back(str("w", unit), Shape{kUnit}, Init::Normal), unit});
    }
    buffer = make_param_and_grad_buffer(list, DType::F32, device, {shard_group, *self},
                                        {.zero_stage = stage, .bucket_size = 1});
    kept = buffer->shard();
  }

  static void fill(const Tensor& t, float value) { std::fill_n(t.data<float>(), t.numel(), value); }
  /// Writes weights as a checkpoint reader does.
  void load(float value) {
    buffer->visit_weights([&](Param&, i64, Tensor values) { fill(values, value); });
  }
  /// Writes weights as the optimizer does, through the tensors that shard() returned earlier.
  void update(float value) {
    for (const ShardSegment& segment : kept) fill(segment.params, value);
  }
  void use(int unit, Use use) {
    buffer->acquire(unit, use);
    buffer->release(unit, use, true);
  }
  /// Returns the first weight of this rank's shard and of the peer's shard.
  std::pair<float, float> weights(int unit) {
    buffer->acquire(unit, Use::Forward);
    const float* w = std::next(params.begin(), unit)->value.data<float>();
    const std::pair<float, float> result{w[0], w[kUnit - 1]};
    buffer->release(unit, Use::Forward, false);
    return result;
  }
  i64 units_gathered() const {
    const i64 held = device.memory().by_class[static_cast<std::size_t>(MemoryClass::Params)].bytes;
    return held / (kUnit * 4) - kUnits;  // with one rank, the shards are the full weights
  }

  CpuDevice device;
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::list<Param> params;
  std::unique_ptr<ParamAndGradBuffer> buffer;
  std::vector<ShardSegment> kept;
};

using Pair = std::pair<float, float>;

class ParamGatherTest : public testing::TestWithParam<int> {};

TEST_P(ParamGatherTest, GathersCompleteBeforeWeightsAreLoaded) {
  LateCommunicator group;
  Fixture f(GetParam(), group);
  f.load(1);
  f.buffer->publish();
  f.use(0, Use::Forward);  // at stage 3, the gather of unit 1 is in flight
  f.load(2);
  EXPECT_EQ(f.weights(1).second, 1) << "the peer's part was read from weights not published yet";
  f.buffer->publish();
  f.buffer->publish();
  for (int unit = 0; unit < kUnits; ++unit) EXPECT_EQ(f.weights(unit), Pair(2, 2));
}

TEST_P(ParamGatherTest, GathersCompleteBeforeUpdate) {
  LateCommunicator group;
  Fixture f(GetParam(), group);
  f.load(1);
  f.buffer->publish();
  f.use(0, Use::Forward);
  f.buffer->clear_grads();
  f.buffer->finish();
  f.update(2);
  EXPECT_EQ(f.weights(1).second, 1);
  f.buffer->publish();
  EXPECT_EQ(f.weights(1), Pair(2, 2));
}

TEST_P(ParamGatherTest, PrefetchedGathersAreDiscardedWhenWeightsChange) {
  LateCommunicator group;
  Fixture f(GetParam(), group);
  f.load(1);
  f.buffer->publish();
  f.use(0, Use::Forward);
  f.load(2);
  f.buffer->publish();
  EXPECT_EQ(f.weights(1), Pair(2, 2));
}

INSTANTIATE_TEST_SUITE_P(Stages, ParamGatherTest, testing::Values(1, 2, 3));

TEST(Zero3ParamsTest, HoldsUnitInUseAndNextUnit) {
  const auto self = make_self_communicator();
  Fixture f(3, *self);
  const auto expect_while_used = [&](int unit, Use use, i64 gathered) {
    f.buffer->acquire(unit, use);
    EXPECT_EQ(f.units_gathered(), gathered) << "unit " << unit;
    f.buffer->release(unit, use, true);
    EXPECT_EQ(f.units_gathered(), gathered - 1) << "unit " << unit;
  };
  for (int unit = 0; unit < kUnits; ++unit) expect_while_used(unit, Use::Forward, unit + 1 < kUnits ? 2 : 1);
  for (int unit = kUnits - 1; unit >= 0; --unit) expect_while_used(unit, Use::Backward, unit > 0 ? 2 : 1);
  // A loop that ends early and turns around must leave nothing behind.
  expect_while_used(0, Use::Forward, 2);
  expect_while_used(3, Use::Backward, 2);
  expect_while_used(0, Use::Forward, 2);
  f.buffer->publish();
  EXPECT_EQ(f.units_gathered(), 0);
}

TEST(Zero3ParamsTest, KeepsUnitHeldByNestedUse) {
  const auto self = make_self_communicator();
  Fixture f(3, *self);
  f.buffer->acquire(3, Use::Backward);  // prefetches unit 2
  f.buffer->acquire(0, Use::Backward);  // tied embeddings, held until backward reaches them
  EXPECT_EQ(f.units_gathered(), 3);
  f.buffer->release(3, Use::Backward, true);
  for (const int unit : {2, 1}) {
    f.buffer->acquire(unit, Use::Backward);
    EXPECT_EQ(f.units_gathered(), unit == 2 ? 3 : 2);
    f.buffer->release(unit, Use::Backward, true);
  }
  f.buffer->acquire(0, Use::Backward);
  f.buffer->release(0, Use::Backward, true);
  f.buffer->release(0, Use::Backward, true);
  EXPECT_EQ(f.units_gathered(), 0);
}

}  // namespace
}  // namespace mcpp
