#include <gtest/gtest.h>

#include <list>

#include "parallel/dp/zero.h"
#include "tensor/ops/ops.h"
#include "tests/support/fakes/mirror_communicator.h"

namespace mcpp {
namespace {

class ParamAndGradBufferTest : public testing::Test {
 protected:
  /// Makes two parameters in each of `units` units: a matrix [10, 7] and a bias [7].
  std::unique_ptr<ParamAndGradBuffer> make(int units, Communicator& dp, i64 bucket_elements, DType dtype = DType::F32) {
    return make_param_and_grad_buffer(params_of(units), dtype, device_, {dp, *self_}, {.bucket_size = bucket_elements});
  }
  /// Makes one bucket per unit. This rank and its replicas hold all gradients.
  std::unique_ptr<ParamAndGradBuffer> make_for_replicas(int units, Communicator& replicas, int stage, bool overlaps) {
    return make_param_and_grad_buffer(params_of(units), DType::F32, device_, {*self_, replicas},
                                      {.zero_stage = stage, .bucket_size = 1, .overlap_grad_reduce = overlaps});
  }
  std::vector<UnitParam> params_of(int units) {
    std::vector<UnitParam> list;
    for (int unit = 0; unit < units; ++unit) {
      list.push_back({&params_.emplace_back(str("layer", unit, ".weight"), Shape{10, 7}, Init::Normal), unit});
      list.push_back({&params_.emplace_back(str("layer", unit, ".bias"), Shape{7}, Init::Zeros), unit});
    }
    return list;
  }
  static void add_grads_of(int unit, const ParamAndGradBuffer& buffer, float value) {
    for (std::size_t i = 0; i < buffer.params().size(); ++i) {
      if (buffer.plan().params[i].unit == unit) add_grad(*buffer.params()[i], value);
    }
  }

  /// Adds `value` to every gradient of the parameter, as a backward pass does.
  static void add_grad(Param& param, float value) {
    param.add_grad([&](Tensor& sum, float beta) {
      float* grad = sum.data<float>();
      for (i64 i = 0; i < param.numel(); ++i) grad[i] = (beta == 0 ? 0 : beta * grad[i]) + value;
    });
  }

  CpuDevice device_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  std::list<Param> params_;  // keeps addresses stable
};

TEST_F(ParamAndGradBufferTest, ParametersAreViewsOfOneVector) {
  const auto self = make_self_communicator();
  const auto buffer = make(3, *self, 0, DType::BF16);
  const std::vector<ShardSegment> shard = buffer->shard();
  ASSERT_EQ(shard.size(), 1u);
  EXPECT_EQ(shard[0].params.numel(), buffer->plan().total);
  EXPECT_EQ(shard[0].params.dtype(), DType::BF16);
  EXPECT_EQ(shard[0].grads.dtype(), DType::F32);
  for (std::size_t i = 0; i < buffer->params().size(); ++i) {
    const Param& param = *buffer->params()[i];
    EXPECT_EQ(param.value.shape(), param.box.shape);
    EXPECT_EQ(param.value.raw(), shard[0].params.flat(buffer->plan().offsets[i], 1).raw());
    EXPECT_EQ(param.main_grad.raw(), shard[0].grads.flat(buffer->plan().offsets[i], 1).raw());
  }
  EXPECT_EQ(device_.memory().by_class[static_cast<std::size_t>(MemoryClass::Params)].bytes, buffer->plan().total * 2);
  EXPECT_EQ(device_.memory().by_class[static_cast<std::size_t>(MemoryClass::Grads)].bytes, buffer->plan().total * 4);
}

TEST_F(ParamAndGradBufferTest, ReducesBucketWhenItsUnitsAreDone) {
  MirrorCommunicator dp;
  const auto buffer = make(4, dp, 300);  // 192 elements per unit: two units per bucket, padded to 384
  ASSERT_EQ(buffer->plan().buckets.size(), 2u);
  buffer->clear_grads();
  for (const bool last : {false, true}) {
    for (Param& param : params_) add_grad(param, 1);
    for (int unit = 3; unit >= 0; --unit) {
      buffer->acquire(unit, Use::Forward);
      buffer->release(unit, Use::Forward, last);
      buffer->acquire(unit, Use::Backward);
      buffer->release(unit, Use::Backward, last);
      EXPECT_EQ(dp.started.size(), !last ? 0u : unit >= 3 ? 0u : unit >= 1 ? 1u : 2u) << "unit " << unit;
    }
  }
  buffer->finish();
  EXPECT_EQ(dp.started, (std::vector<i64>{384, 384}));
  for (const Param& param : params_) EXPECT_EQ(param.main_grad.data<float>()[0], 4) << param.name;
}

/// HSDP: the reduction of a bucket over replicas must start when the next bucket is complete, not after all of them.
TEST_F(ParamAndGradBufferTest, ReducesOverReplicasDuringBackward) {
  constexpr int kUnits = 4;
  for (const int stage : {1, 2, 3}) {
    for (const bool overlaps : {true, false}) {
      MirrorCommunicator replicas;
      const auto buffer = make_for_replicas(kUnits, replicas, stage, overlaps);
      for (int step = 0; step < 2; ++step) {
        replicas.started.clear();
        buffer->clear_grads();
        for (const bool last : {false, true}) {
          for (int unit = kUnits - 1; unit >= 0; --unit) {
            buffer->acquire(unit, Use::Backward);
            add_grads_of(unit, *buffer, 3);
            buffer->release(unit, Use::Backward, last);
            const int complete = last && overlaps ? kUnits - 1 - unit : 0;
            EXPECT_EQ(replicas.started.size(), static_cast<std::size_t>(complete)) << stage << " " << unit;
          }
        }
        buffer->finish();
        EXPECT_EQ(replicas.started.size(), static_cast<std::size_t>(kUnits));
        for (const ShardSegment& segment : buffer->shard()) EXPECT_EQ(segment.grads.data<float>()[0], 2 * (3 + 3));
      }
    }
  }
}

TEST_F(ParamAndGradBufferTest, FinishReducesUnreleasedBucketsOverReplicas) {
  for (const int stage : {1, 2, 3}) {
    MirrorCommunicator replicas;
    const auto buffer = make_for_replicas(3, replicas, stage, true);
    for (int step = 0; step < 2; ++step) {
      buffer->clear_grads();
      for (int unit = 2; unit >= 0; --unit) {
        buffer->acquire(unit, Use::Backward);
        add_grads_of(unit, *buffer, 5);
        buffer->release(unit, Use::Backward, unit == 2);
      }
      buffer->finish();
      for (const ShardSegment& segment : buffer->shard()) EXPECT_EQ(segment.grads.data<float>()[0], 10);
    }
    EXPECT_EQ(replicas.started.size(), 6U) << stage;
  }
}

TEST_F(ParamAndGradBufferTest, FinishReducesUnreleasedBuckets) {
  MirrorCommunicator dp;
  const auto buffer = make(2, dp, 1);
  for (int step = 0; step < 2; ++step) {
    buffer->clear_grads();
    for (Param& param : params_) add_grad(param, 3);
    buffer->acquire(1, Use::Backward);
    buffer->release(1, Use::Backward, true);
    buffer->finish();
    for (const Param& param : params_) EXPECT_EQ(param.main_grad.data<float>()[param.numel() - 1], 6);
  }
  EXPECT_EQ(dp.started.size(), 4u);
}

TEST_F(ParamAndGradBufferTest, UnwrittenGradientsAreZero) {
  const auto self = make_self_communicator();
  const auto buffer = make(2, *self, 0);
  for (Param& param : params_) add_grad(param, 5);
  buffer->finish();
  buffer->clear_grads();
  add_grad(params_.front(), 2);
  buffer->finish();
  // The 70 elements of the first matrix are set; everything else, including padding, is zero.
  EXPECT_EQ(ops::sum_of_squares(buffer->shard()[0].grads), 70 * 4.0);
  for (const Param& param : params_) EXPECT_TRUE(param.has_grad());
}

TEST_F(ParamAndGradBufferTest, RejectsSecondFinalRelease) {
  const auto self = make_self_communicator();
  const auto buffer = make(1, *self, 0);
  buffer->acquire(0, Use::Backward);
  buffer->release(0, Use::Backward, true);
  buffer->acquire(0, Use::Backward);
  EXPECT_THROW(buffer->release(0, Use::Backward, true), Error);
}

TEST_F(ParamAndGradBufferTest, RejectsDuplicateParameter) {
  const auto self = make_self_communicator();
  Param param("tied", Shape{4}, Init::Ones);
  const std::vector<UnitParam> list{{&param, 0}, {&param, 1}};
  EXPECT_THROW(make_param_and_grad_buffer(list, DType::F32, device_, {*self, *self}, {.bucket_size = 0}), Error);
}

TEST_F(ParamAndGradBufferTest, NestedUsesEndWithOutermostRelease) {
  MirrorCommunicator dp;
  const auto buffer = make(1, dp, 0);
  buffer->clear_grads();
  buffer->acquire(0, Use::Backward);
  buffer->acquire(0, Use::Backward);
  buffer->acquire(0, Use::Forward);  // recomputation
  buffer->release(0, Use::Forward, true);
  buffer->release(0, Use::Backward, true);
  EXPECT_TRUE(dp.started.empty());
  buffer->release(0, Use::Backward, false);
  EXPECT_EQ(dp.started.size(), 1u);
  buffer->finish();
}

TEST_F(ParamAndGradBufferTest, StartsNothingBeforeFinishWithoutOverlap) {
  MirrorCommunicator dp;
  std::list<Param> params;
  const std::vector<UnitParam> list{{&params.emplace_back("a", Shape{5}, Init::Ones), 0},
                                    {&params.emplace_back("b", Shape{6}, Init::Ones), 1}};
  const auto buffer = make_param_and_grad_buffer(list, DType::F32, device_, {dp, *self_},
                                                 {.bucket_size = 1, .overlap_grad_reduce = false});
  buffer->clear_grads();
  for (int unit = 1; unit >= 0; --unit) {
    buffer->acquire(unit, Use::Backward);
    add_grad(*list[static_cast<std::size_t>(unit)].param, 2);
    buffer->release(unit, Use::Backward, true);
  }
  EXPECT_TRUE(dp.started.empty());
  buffer->finish();
  EXPECT_EQ(dp.started.size(), 2u);
  for (const Param& param : params) EXPECT_EQ(param.main_grad.data<float>()[0], 4);
}

TEST_F(ParamAndGradBufferTest, RejectsReleaseWithoutAcquire) {
  for (const int stage : {0, 1, 2, 3}) {
    Param param("w", Shape{4}, Init::Ones);
    const std::vector<UnitParam> list{{&param, 1}};
    const auto buffer = make_param_and_grad_buffer(list, DType::F32, device_, {*self_, *self_}, {.zero_stage = stage});
    EXPECT_THROW(buffer->release(1, Use::Forward, true), Error);
    buffer->acquire(1, Use::Forward);
    EXPECT_THROW(buffer->release(1, Use::Backward, true), Error);
    EXPECT_THROW(buffer->publish(), Error) << "new weights for a unit in use";
    buffer->release(1, Use::Forward, true);
    EXPECT_THROW(buffer->release(1, Use::Forward, true), Error);
    buffer->acquire(0, Use::Forward);  // a unit without parameters
    buffer->release(0, Use::Forward, true);
    buffer->publish();
  }
}

TEST_F(ParamAndGradBufferTest, RejectsHybridShardingAtStageZero) {
  MirrorCommunicator dp;
  EXPECT_THROW(make_param_and_grad_buffer({}, DType::F32, device_, {*self_, dp}, {.zero_stage = 0}), Error);
}

TEST_F(ParamAndGradBufferTest, RejectsUnknownZeroStages) {
  for (const int stage : {-1, 4}) {
    try {
      make_param_and_grad_buffer({}, DType::F32, device_, {*self_, *self_}, {.zero_stage = stage});
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::BadInput);
      EXPECT_NE(std::string(error.what()).find(str("zero_stage = ", stage)), std::string::npos) << error.what();
    }
  }
}

/// At stage 3, the full weights and gradients of a unit exist only while the unit is in use.
TEST_F(ParamAndGradBufferTest, Stage3AllocatesUnitsOnlyWhileInUse) {
  Param param("w", Shape{4}, Init::Ones);
  const std::vector<UnitParam> list{{&param, 0}};
  const auto buffer = make_param_and_grad_buffer(list, DType::F32, device_, {*self_, *self_}, {.zero_stage = 3});
  EXPECT_FALSE(param.value.defined());
  buffer->acquire(0, Use::Forward);
  EXPECT_TRUE(param.value.defined());
  EXPECT_FALSE(param.main_grad.defined());
  buffer->acquire(0, Use::Backward);
  EXPECT_TRUE(param.main_grad.defined());
  buffer->release(0, Use::Backward, false);
  EXPECT_FALSE(param.main_grad.defined());
  EXPECT_TRUE(param.value.defined());
  buffer->release(0, Use::Forward, false);
  EXPECT_FALSE(param.value.defined());
}

}  // namespace
}  // namespace mcpp
