// Measured traffic of data parallelism, compared with the formulas.
#include <gtest/gtest.h>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/dp/zero.h"
#include "tests/support/layouts/dp_toy.h"

namespace mcpp::dp_volume_test {
namespace {

using test::ToyModel;
using test::ToyTraining;

/// Buffer of one rank over a metered group.
struct MeteredBuffer {
  MeteredBuffer(Communicator& world, int stage, bool overlap, DType dtype = DType::F32)
      : group(make_metered(world.split(0, 0), meter)),
        buffer(make_param_and_grad_buffer(model.unit_params(), dtype, device, {*group, *self},
                                          {.zero_stage = stage,
                                           .bucket_size = 400,
                                           .overlap_grad_reduce = overlap,
                                           .overlap_param_gather = overlap})) {}

  std::shared_ptr<CommMeter> meter = std::make_shared<CommMeter>();
  CpuDevice device;
  ToyModel model;
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::unique_ptr<Communicator> group;
  std::unique_ptr<ParamAndGradBuffer> buffer;
};

struct Volume {
  int stage, microbatches;
  DType dtype;
  i64 all_reduces, reduce_scatters, gathers;  ///< of all parameters per step
};

class DpVolumeTest : public testing::TestWithParam<std::tuple<Volume, int, bool>> {};

TEST_P(DpVolumeTest, MatchesFormula) {
  const auto& [expected, ranks, overlap] = GetParam();
  run_local_ranks(ranks, [&, v = expected, d = ranks, overlap = overlap](Communicator& world, int rank) {
    MeteredBuffer m(world, v.stage, overlap, v.dtype);
    ToyTraining training{m.model, *m.buffer, rank, v.microbatches};
    training.run_step(0);
    m.buffer->publish();
    training.run_step(1);  // a step ends when the weights of the next one have arrived
    m.meter->reset();
    m.buffer->publish();
    training.run_step(2);

    const i64 p = m.buffer->plan().total;
    const CommMeter& meter = *m.meter;
    EXPECT_EQ(meter[CommOp::AllReduce].bytes, v.all_reduces * 4 * p * 2 * (d - 1) / d);
    EXPECT_EQ(meter[CommOp::ReduceScatter].bytes, v.reduce_scatters * 4 * p * (d - 1) / d);
    EXPECT_EQ(meter[CommOp::AllGather].bytes, v.gathers * size_of(v.dtype) * p * (d - 1) / d);
    EXPECT_EQ(meter.total_bytes(),
              meter[CommOp::AllReduce].bytes + meter[CommOp::ReduceScatter].bytes + meter[CommOp::AllGather].bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Stages, DpVolumeTest,
    testing::Combine(testing::Values(Volume{0, 1, DType::F32, 1, 0, 0},  // 2 P (d - 1) / d
                                     Volume{0, 3, DType::F32, 1, 0, 0},
                                     Volume{1, 1, DType::F32, 0, 1, 1},  // the same volume in two halves
                                     Volume{1, 3, DType::F32, 0, 1, 1}, Volume{1, 1, DType::BF16, 0, 1, 1},
                                     Volume{2, 1, DType::F32, 0, 1, 1}, Volume{2, 3, DType::F32, 0, 3, 1},
                                     Volume{3, 1, DType::F32, 0, 1, 2},  // 3 P (d - 1) / d
                                     Volume{3, 3, DType::BF16, 0, 3, 6}),
                     testing::Values(2, 3, 4), testing::Bool()));

class DpEarlyMicrobatchesTest : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(DpEarlyMicrobatchesTest, SendNothingBeforeLastMicrobatch) {
  run_local_ranks(2, [](Communicator& world, int rank) {
    const auto [stage, overlap] = GetParam();
    MeteredBuffer m(world, stage, overlap);
    ToyTraining training{m.model, *m.buffer, rank};
    m.buffer->clear_grads();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      training.forward(false);
      training.backward(0, microbatch, false);
    }
    training.forward(true);
    EXPECT_EQ(m.meter->total_bytes(), 0);
    training.backward(0, 2, true);
    EXPECT_EQ(m.meter->total_bytes() > 0, overlap);
    m.buffer->finish();
    EXPECT_GT(m.meter->total_bytes(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, DpEarlyMicrobatchesTest, testing::Combine(testing::Values(0, 1), testing::Bool()));

/// Without a publish() in between, an evaluation gathers every unit once and sends nothing else.
TEST(DpEvaluationVolumeTest, IsOneGatherAtStage3) {
  for (const int stage : {0, 1, 2, 3}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      MeteredBuffer m(world, stage, true);
      ToyTraining{m.model, *m.buffer, rank}.forward(true);
      EXPECT_EQ(m.meter->total_bytes(), stage == 3 ? 4 * m.buffer->plan().total / 2 : 0);
    });
  }
}

/// The output unit borrows the embedding: forward gathers it again, and backward holds it until its own turn. Neither
/// sends the units of the loop more than once.
TEST(DpTiedEmbeddingsVolumeTest, IsOneMoreGatherAtStage3) {
  for (const bool overlap : {false, true}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      MeteredBuffer m(world, 3, overlap);
      ToyTraining{m.model, *m.buffer, rank, 1, /*is_tied=*/true}.run_step(0);
      const i64 total = m.buffer->plan().total, embedding = m.buffer->plan().buckets[0].size();
      EXPECT_EQ((*m.meter)[CommOp::AllGather].bytes, 4 * (2 * total + embedding) / 2);
      EXPECT_EQ((*m.meter)[CommOp::ReduceScatter].bytes, 4 * total / 2);
    });
  }
}

/// Hybrid sharding sends only shards between replicas, once per step.
TEST(DpHybridShardingVolumeTest, IsOneShardBetweenReplicas) {
  for (const int stage : {1, 2, 3}) {
    run_local_ranks(4, [&](Communicator& world, int rank) {
      const test::DpGroups groups(world, {.shards = 2, .replicas = 2});
      const auto meter = std::make_shared<CommMeter>();
      const auto replicate = make_metered(world.split(rank % 2, 0), meter);
      CpuDevice device;
      ToyModel model;
      const auto buffer = make_param_and_grad_buffer(model.unit_params(), DType::F32, device,
                                                     {*groups.shard, *replicate}, {.zero_stage = stage});
      ToyTraining training{model, *buffer, rank, 3};
      training.run_step(0);
      buffer->publish();
      training.forward(true);
      EXPECT_EQ((*meter)[CommOp::AllReduce].bytes, 4 * (buffer->plan().total / 2));  // 2 n (d - 1) / d with d = 2
      EXPECT_EQ(meter->total_bytes(), (*meter)[CommOp::AllReduce].bytes);
    });
  }
}

}  // namespace
}  // namespace mcpp::dp_volume_test
