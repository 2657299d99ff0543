// Records of ops on the meta device.
#include "tensor/op_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tensor/ops/ops.h"

namespace mcpp::op_trace_test {
namespace {

class OpTraceTest : public testing::Test {
 protected:
  OpTraceTest() { device_.record_to(&trace_); }

  Tensor make(Shape shape, MemoryClass c = MemoryClass::Activations) {
    return Tensor::empty(std::move(shape), DType::F32, device_, c);
  }
  const OpRecord& last() const { return trace_.ops.back(); }

  OpTrace trace_;  // outlives the device
  MetaDevice device_;
};

TEST_F(OpTraceTest, MatmulHasShapeOfGemm) {
  const Tensor x = make({6, 4}), w = make({5, 4}), dy = make({6, 5});
  Tensor y = make({6, 5}), dw = make({5, 4}, MemoryClass::Grads);
  ops::matmul(x, w, y, {.transpose_b = true});
  EXPECT_EQ(last().kind, OpKind::Matmul);
  EXPECT_EQ(last().matmul, (MatmulShape{.m = 6, .n = 5, .k = 4}));
  EXPECT_EQ(last().flops, 2 * 6 * 5 * 4);
  EXPECT_EQ(last().bytes, 4 * (24 + 20 + 30));
  EXPECT_EQ(last().weight_data, w.raw());
  EXPECT_FALSE(last().is_weight_gradient);
  ops::matmul(dy, x, dw, {.transpose_a = true, .beta = 1});
  EXPECT_EQ(last().matmul, (MatmulShape{.m = 5, .n = 4, .k = 6}));
  EXPECT_EQ(last().weight_data, dw.raw());
  EXPECT_TRUE(last().is_weight_gradient);
}

TEST_F(OpTraceTest, GroupedMatmulHasRowsOfMeanGroup) {
  const Tensor x = make({12, 4}), w = make({3, 5, 4});
  Tensor y = make({12, 5});
  ops::grouped_matmul(x, w, std::vector<i64>{2, 10, 0}, y, true);
  EXPECT_EQ(last().matmul, (MatmulShape{.m = 4, .n = 5, .k = 4, .batch = 3}));
}

TEST_F(OpTraceTest, OpWithoutDescriptionReadsAndWritesItsTensor) {
  Tensor x = make({8});
  ops::scale(x, 2);
  EXPECT_EQ(last().kind, OpKind::Memory);
  EXPECT_EQ(last().bytes, 2 * 8 * 4);
  device_.record_to(nullptr);
  const std::size_t before = trace_.ops.size();
  ops::scale(x, 2);
  EXPECT_EQ(trace_.ops.size(), before);
}

/// Counts pairs with 0 <= query - key < window, those at either bound as half of one inside and half of one outside.
double count_pairs(const std::vector<i64>& queries, const std::vector<i64>& keys, i64 window) {
  const auto beyond = [](i64 distance, i64 limit) { return distance > limit ? 1.0 : distance == limit ? 0.5 : 0.0; };
  double sum = 0;
  for (const i64 q : queries)
    for (const i64 k : keys) sum += beyond(q - k, 0) - (window > 0 ? beyond(q - k, window) : 0);
  return sum;
}

TEST_F(OpTraceTest, AttentionCountsVisiblePairsOfAllRuns) {
  std::mt19937 random(7);
  const auto draw = [&](i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random); };
  for (int i = 0; i < 200; ++i) {
    const i64 length = draw(1, 6);
    const auto make_runs = [&] {
      std::vector<i64> begins;
      i64 at = 0;
      for (i64 run = draw(1, 4); run > 0; --run) begins.push_back(at += draw(0, 5)), at += length;
      return begins;
    };
    const auto positions = [](const std::vector<i64>& begins, i64 rows) {
      std::vector<i64> list;
      for (const i64 begin : begins)
        for (i64 row = 0; row < rows; ++row) list.push_back(begin + row);
      return list;
    };
    const std::vector<i64> q_runs = make_runs(), k_runs = make_runs();
    const std::vector<i64> q_positions = positions(q_runs, length), k_positions = positions(k_runs, length);
    const i64 queries = std::ssize(q_positions), keys = std::ssize(k_positions);
    const Tensor q = make({queries, 2, 12}), k = make({keys, 2, 6});
    AttentionOptions options;
    options.queries.ranges = PositionRanges::runs(q_runs, length);
    options.keys = PositionRanges::runs(k_runs, length);
    options.window = draw(0, 1) * draw(1, 12);
    AttentionResult y{.out = make({queries, 2, 12}), .lse = make({2, 4, queries})};
    ops::attention({dense_heads(q, 4), dense_heads(k, 2), dense_heads(k, 2)}, options, y);
    const double pairs = count_pairs(q_positions, k_positions, options.window);
    EXPECT_DOUBLE_EQ(last().attention.pairs, pairs) << "window " << options.window;
    EXPECT_DOUBLE_EQ(last().flops, 2 * 2 * 4 * (3 + 3) * pairs);
    EXPECT_DOUBLE_EQ(last().attention.share, pairs / count_pairs(q_positions, positions({0}, 100), options.window));
    EXPECT_EQ(last().attention.elements(), static_cast<double>(queries * 2 * (12 + 2 * 6)));
  }
}

}  // namespace
}  // namespace mcpp::op_trace_test
