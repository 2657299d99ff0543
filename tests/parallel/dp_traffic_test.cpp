// Compressed communication of weights and gradients, and a secondary shard of the weights within each node.
#include <gtest/gtest.h>

#include "base/integer_math.h"
#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/dp/zero.h"
#include "tensor/ops/low_precision/pack.h"
#include "tensor/ops/ops.h"
#include "tests/support/layouts/dp_toy.h"
#include "tests/support/packed.h"

namespace mcpp::dp_traffic_test {
namespace {

using test::DpGroups;
using test::DpLayout;
using test::ToyModel;
using test::ToyTraining;
using Floats = std::vector<float>;

struct Options {
  int stage;
  bool overlap;
  bool weights = false;
  GradReduceFormat gradients = GradReduceFormat::Full;
};

/// Buffer of one rank over metered groups.
struct Rank {
  Rank(Communicator& world, const DpLayout& layout, const Options& o, DType dtype = DType::F32)
      : groups(world, layout) {
    const auto meter = [](std::unique_ptr<Communicator>& group, std::shared_ptr<CommMeter>& counts) {
      if (group) group = make_metered(std::move(group), counts);
    };
    meter(groups.shard, shard), meter(groups.node, node), meter(groups.across, across);
    Layout zero{.zero_stage = o.stage,
                .formats = {.quantized_weights = o.weights},
                .bucket_size = 400,
                .overlap_grad_reduce = o.overlap,
                .overlap_param_gather = o.overlap};
    zero.formats.set_grad_reduce_format(o.gradients);
    buffer = make_param_and_grad_buffer(model.unit_params(), dtype, device, groups.refs(), zero);
  }
  void reset_meters() const { shard->reset(), node->reset(), across->reset(); }

  std::shared_ptr<CommMeter> shard = std::make_shared<CommMeter>(), node = std::make_shared<CommMeter>(),
                             across = std::make_shared<CommMeter>();
  CpuDevice device;
  ToyModel model;
  DpGroups groups;
  std::unique_ptr<ParamAndGradBuffer> buffer;
};

float weight(int step, const std::string& name, i64 i) {
  return static_cast<float>(test::made_up_weight(step, name, i) * 0.37);
}

void set_weights(const ParamAndGradBuffer& buffer, int step) {
  buffer.visit_weights([&](const Param& param, i64 first, const Tensor& values) {
    for (i64 i = 0; i < values.numel(); ++i) values.data<float>()[i] = weight(step, param.name, first + i);
  });
}

/// Returns f(i) for the elements of a parameter, followed by zero padding.
template <class F>
Floats padded(const Param& param, const F& f) {
  Floats all;
  for (i64 i = 0; i < param.numel(); ++i) all.push_back(f(i));
  all.resize(static_cast<std::size_t>(round_up(param.numel(), kParamAlignment)));
  return all;
}

constexpr std::array<DpLayout, 4> kLayouts{{{1, 1}, {3, 1}, {2, 2}, {4, 1, 2}}};

/// Received weights must equal the weights of each parameter alone, for every stage and number of ranks.
TEST(QuantizedWeightsTest, AreIdenticalOnAllRanksAndKeptInFullPrecision) {
  for (const DpLayout& layout : kLayouts) {
    for (const Options& o : {Options{1, true, true}, {2, false, true}, {3, true, true}, {3, false, true}}) {
      run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
        Rank r(world, layout, o);
        ToyTraining training{r.model, *r.buffer, rank, 2};
        for (int step = 0; step < 3; ++step) {
          set_weights(*r.buffer, step);
          r.buffer->publish();
          int seen = 0;
          training.on_forward = [&](const Param& param) {
            const Floats expected =
                test::packed_and_back(padded(param, [&](i64 i) { return weight(step, param.name, i); }));
            for (i64 i = 0; i < param.numel(); ++i)
              ASSERT_EQ(param.value.data<float>()[i], expected[static_cast<std::size_t>(i)]) << param.name << i;
            ++seen;
          };
          training.run_step(step);
          EXPECT_EQ(seen, 2 * static_cast<int>(r.model.entries.size()));
          r.buffer->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
            for (i64 i = 0; i < values.numel(); ++i)
              ASSERT_EQ(values.data<float>()[i], weight(step, param.name, first + i));
          });
        }
      });
    }
  }
}

/// Returns the compressed part of a parameter's gradient sum, computed from the definition.
Floats low_precision_sum(GradReduceFormat format, const std::vector<Floats>& parts) {
  Floats sum;
  for (const Floats& part : parts) {
    const Floats decoded = format == GradReduceFormat::Int8 ? test::packed_and_back(part) : test::rounded_to_bf16(part);
    if (sum.empty())
      sum = decoded;
    else
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += decoded[i];
  }
  return sum;
}

/// Returns the sum over the ranks of a shard group, in one microbatch.
Floats expected_sum(GradReduceFormat format, const DpLayout& layout, int replica, int step, const Param& param) {
  std::vector<Floats> of_nodes;
  for (int first = 0; first < layout.shards; first += layout.node) {
    std::vector<Floats> of_ranks;
    for (int r = first; r < first + layout.node; ++r) {
      const int rank = replica * layout.shards + r;
      of_ranks.push_back(padded(param, [&](i64 i) {
        return ToyModel::is_used(param) ? test::made_up_grad(step, 0, rank, 0, param.name, i) : 0;
      }));
    }
    of_nodes.push_back(layout.node > 1 ? low_precision_sum(format, of_ranks) : of_ranks.front());
  }
  return low_precision_sum(format, of_nodes);
}

TEST(CompressedGradientsTest, AreSummedInFullPrecisionByRankAndNode) {
  for (const DpLayout& layout : {DpLayout{2, 1}, {3, 1}, {2, 2}, {4, 1, 2}, {6, 1, 2}, {6, 1, 3}}) {
    using enum GradReduceFormat;
    for (const Options& o : {Options{1, true, false, Int8},
                             {2, false, false, Int8},
                             {3, true, true, Int8},
                             {1, true, false, Bf16},
                             {2, true, true, Bf16},
                             {3, false, false, Bf16}}) {
      run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
        Rank r(world, layout, o);
        ToyTraining training{r.model, *r.buffer, rank};
        for (int step = 0; step < 2; ++step) {
          training.run_step(step);
          r.buffer->visit_grads([&](const Param& param, i64 first, const Tensor& values) {
            Floats sum = expected_sum(o.gradients, layout, 0, step, param);
            for (int replica = 1; replica < layout.replicas; ++replica) {
              const Floats other = expected_sum(o.gradients, layout, replica, step, param);
              for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
            }
            for (i64 i = 0; i < values.numel(); ++i)
              ASSERT_EQ(values.data<float>()[i], sum[static_cast<std::size_t>(first + i)])
                  << param.name << first + i << " of " << layout.shards << ", stage " << o.stage;
          });
        }
      });
    }
  }
}

/// In byte format a non-finite value spoils all of a bias, in bf16 one element.
TEST(CompressedGradientsTest, PropagateNonFiniteValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    int stage;
    GradReduceFormat format;
    float number;
    double bad;
  };
  for (const Case& c : {Case{1, GradReduceFormat::Int8, kInfinity, 11},
                        {2, GradReduceFormat::Int8, kInfinity, 11},
                        {1, GradReduceFormat::Bf16, kInfinity, 1},
                        {2, GradReduceFormat::Bf16, -kInfinity, 1},
                        {3, GradReduceFormat::Bf16, kNan, 1}}) {
    run_local_ranks(4, [&](Communicator& world, int rank) {
      Rank r(world, {4, 1, 2}, {c.stage, true, false, c.format});
      test::reduce_gradients(r.model, *r.buffer, [&](const Param& param, Tensor& sum) {
        ops::fill_zero(sum);
        if (param.name == "layer2.bias" && rank == 3) sum.data<float>()[2] = c.number;
      });
      i64 bad = 0;
      r.buffer->visit_grads([&](const Param&, i64, const Tensor& values) {
        for (i64 i = 0; i < values.numel(); ++i) bad += std::isfinite(values.data<float>()[i]) ? 0 : 1;
      });
      Tensor all = Tensor::zeros({1}, DType::F64, r.device, MemoryClass::Other);
      all.data<double>()[0] = static_cast<double>(bad);
      world.all_reduce(all, ReduceOp::Sum).wait();
      EXPECT_EQ(all.data<double>()[0], c.bad);
    });
  }
}

/// Returns the bytes that a rank sends for n elements of w bytes each in a group of d ranks.
i64 sent(i64 n, i64 d, i64 w = 4) {
  return n * w * (d - 1) / d;
}

struct Volume {
  DpLayout layout;
  Options options;
  int microbatches;
};

class TrafficVolumeTest : public testing::TestWithParam<Volume> {};

/// For P elements in a step of m microbatches, weights take w bytes or 17/16, gradients 4, 2 or 17/16 per element.
/// Without nodes, the usual formulas hold with these sizes. With nodes of k ranks, stage 3 gathers weights once from
/// all d ranks and 2 m - 1 times from the k; gradients take P within the node and P / k between nodes.
TEST_P(TrafficVolumeTest, MatchesFormula) {
  const auto& [layout, o, m] = GetParam();
  run_local_ranks(layout.ranks(), [&, m = m](Communicator& world, int rank) {
    Rank r(world, layout, o);
    ToyTraining training{r.model, *r.buffer, rank, m};
    training.run_step(0);
    r.buffer->publish();
    training.run_step(1);
    r.reset_meters();
    r.buffer->publish();
    training.run_step(2);
    const i64 p = r.buffer->plan().total, d = layout.shards, k = layout.node, bytes = packed_words(p);
    const i64 weights = o.weights ? bytes : p;
    const bool is_low_precision = o.gradients != GradReduceFormat::Full;
    const i64 width = size_of(message_type(o.gradients)), words = message_elements(message_type(o.gradients), p);
    const i64 gathers = o.stage == 3 ? 2 * m : 1, reductions = o.stage == 1 ? 1 : m;
    const bool has_nodes = k > 1;
    const bool has_copy = has_nodes && o.stage == 3;
    EXPECT_EQ((*r.shard)[CommOp::AllGather].bytes, (has_copy ? 1 : gathers) * sent(weights, d));
    EXPECT_EQ((*r.node)[CommOp::AllGather].bytes, has_copy ? (gathers - 1) * sent(weights, k) : 0);
    EXPECT_EQ((*r.shard)[CommOp::ReduceScatter].bytes, is_low_precision ? 0 : reductions * sent(p, d));
    const auto exchanged = [&](bool is_so, i64 n, i64 ranks) {
      return is_low_precision && is_so ? reductions * sent(n, ranks, width) : 0;
    };
    EXPECT_EQ((*r.shard)[CommOp::AllToAll].bytes, exchanged(!has_nodes, words, d));
    EXPECT_EQ((*r.node)[CommOp::AllToAll].bytes, exchanged(has_nodes, words, k));
    EXPECT_EQ((*r.across)[CommOp::AllToAll].bytes, exchanged(has_nodes, words / k, d / k));
    EXPECT_EQ(r.across->total_bytes(), (*r.across)[CommOp::AllToAll].bytes);
  });
}

constexpr GradReduceFormat kFull = GradReduceFormat::Full, kBf16 = GradReduceFormat::Bf16,
                           kByte = GradReduceFormat::Int8;
INSTANTIATE_TEST_SUITE_P(
    All, TrafficVolumeTest,
    testing::Values(Volume{{4, 1}, {1, true, true, kFull}, 1}, Volume{{4, 1}, {1, true, true, kByte}, 3},
                    Volume{{3, 1}, {2, false, true, kByte}, 2}, Volume{{4, 1}, {3, true, true, kByte}, 2},
                    Volume{{4, 1, 2}, {3, true, false, kFull}, 1}, Volume{{4, 1, 2}, {3, false, false, kFull}, 3},
                    Volume{{4, 1, 2}, {3, true, true, kByte}, 2}, Volume{{4, 2, 2}, {3, true, true, kByte}, 1},
                    Volume{{8, 1, 4}, {3, true, false, kByte}, 1}, Volume{{4, 1, 2}, {1, true, true, kByte}, 1},
                    Volume{{6, 1, 3}, {1, false, false, kByte}, 2}, Volume{{4, 2, 2}, {2, true, true, kByte}, 2},
                    Volume{{4, 1}, {1, true, false, kBf16}, 3}, Volume{{3, 1}, {2, false, false, kBf16}, 2},
                    Volume{{4, 1}, {3, true, true, kBf16}, 2}, Volume{{6, 1, 3}, {1, false, false, kBf16}, 2},
                    Volume{{4, 2, 2}, {2, true, false, kBf16}, 2}, Volume{{8, 1, 4}, {3, true, true, kBf16}, 1}));

/// The secondary shard changes only where weights are read from.
TEST(SecondaryWeightShardTest, ReturnsCurrentWeights) {
  for (const bool overlap : {false, true}) {
    for (const bool is_packed : {false, true}) {
      run_local_ranks(4, [&](Communicator& world, int rank) {
        Rank r(world, {4, 1, 2}, {3, overlap, is_packed});
        ToyTraining training{r.model, *r.buffer, rank, 2, /*is_tied=*/true};
        for (int step = 0; step < 3; ++step) {
          set_weights(*r.buffer, step);
          r.buffer->publish();
          training.on_forward = [&](const Param& param) {
            Floats expected = padded(param, [&](i64 i) { return weight(step, param.name, i); });
            if (is_packed) expected = test::packed_and_back(expected);
            for (i64 i = 0; i < param.numel(); ++i)
              ASSERT_EQ(param.value.data<float>()[i], expected[static_cast<std::size_t>(i)]);
          };
          training.forward(true);  // an evaluation, which leaves the gather of a unit in flight
          training.run_step(step);
        }
      });
    }
  }
}

TEST(SecondaryWeightShardTest, UsesMemoryOfItsShardOnly) {
  for (const bool is_packed : {false, true}) {
    run_local_ranks(4, [&](Communicator& world, int) {
      const auto params = [&](const DpLayout& layout) {
        Rank r(world, layout, {3, false, is_packed});
        return std::pair(r.device.memory().by_class[static_cast<std::size_t>(MemoryClass::Params)].bytes,
                         r.buffer->plan().total);
      };
      const auto [with, p] = params({4, 1, 2});
      const i64 without = params({4, 1}).first;
      EXPECT_NEAR(static_cast<double>(with - without), static_cast<double>(is_packed ? packed_words(p) * 2 : p * 2),
                  0.08 * static_cast<double>(p));
    });
  }
}

}  // namespace
}  // namespace mcpp::dp_traffic_test
