// Attention sinks, which add a term to the softmax denominator, and starts of chunks.
#include "base/check.h"
#include "tests/support/attention.h"
#include "tests/support/errors.h"

namespace mcpp::test {
namespace {

class AttentionSinkTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionSinkTest, every_type(), ops_name);

constexpr AttentionSizes kSinkSizes{70, 70, 2, 4, 2, 24};
const AttentionCase kSinkCases[]{{kSinkSizes},
                                 {kSinkSizes, {}, {}, 0.3f},
                                 {kSinkSizes, {}, {}, 0, 3, 3},
                                 {kSinkSizes, {}, {}, 0, 1, 2, 1, 20, 1.5},
                                 {{1, 5, 1, 8, 1, 64}, {.first = 4}}};

TEST_P(AttentionSinkTest, MatchesReferenceInForwardAndBackward) {
  for (const AttentionCase& c : kSinkCases) {
    const i64 heads = c.size.heads;
    const Numbers sinks = normals(heads, 9, 2), old = test::normals(heads, 10, accumulate_dtype());
    AttentionCall described(c, dtype(), any_device(), target().first);
    described.sinks = {sinks.begin(), sinks.end()};
    const AttentionTruth truth(described);
    const auto outputs = run([&](Device& device) {
      AttentionCall call(c, dtype(), device, target().first);
      const Tensor logits = tensor_of(sinks, {heads}, dtype(), device);
      Tensor d_sinks = garbage({heads}, accumulate_dtype(), device),
             added = tensor_of(old, {heads}, accumulate_dtype(), device);
      ops::attention(call.x, call.options, call.y);
      ops::attention_sink(&logits, call.y);
      ops::attention_backward(call.dout, call.x, call.y, call.options, call.dx);
      ops::attention_sink_backward(call.dout, call.y, logits, d_sinks, 0);
      ops::attention_sink_backward(call.dout, call.y, logits, added, 1);
      return std::vector{call.y.out, call.y.lse, call.dx.q.base, call.dx.k.base, call.dx.v.base, d_sinks, added};
    });
    // The output is rounded twice.
    const double factor = is_low_precision(dtype()) ? 2 : 1;
    const AttentionTolerance t = attention_tolerance(dtype());
    EXPECT_LT(attention_error(truth.out, outputs[0]), factor * t.out);
    EXPECT_LT(attention_error(truth.lse, outputs[1]), t.lse);
    EXPECT_LT(attention_error(truth.dq, outputs[2]), factor * t.gradient);
    EXPECT_LT(attention_error(truth.dk, outputs[3]), factor * t.gradient);
    EXPECT_LT(attention_error(truth.dv, outputs[4]), factor * t.gradient);
    EXPECT_LT(attention_error(truth.d_sinks, outputs[5]), factor * t.gradient);
    std::vector<double> sums = truth.d_sinks;
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += old[i];
    EXPECT_LT(attention_error(sums, outputs[6]), factor * t.gradient);
  }
}

TEST_P(AttentionSinkTest, AddsOneToDenominatorWithoutSinks) {
  AttentionCall call({kSinkSizes}, dtype(), any_device(), target().first);
  call.sinks.assign(4, 0.0);
  const AttentionTruth truth(call);
  ops::attention(call.x, call.options, call.y);
  ops::attention_sink(nullptr, call.y);
  EXPECT_LT(attention_error(truth.out, call.y.out), 2 * attention_tolerance(dtype()).out);
}

TEST_P(AttentionSinkTest, LeavesRowsWithoutKeysAtZero) {
  // The keys are after all queries.
  AttentionCall call({kSinkSizes, {}, {.first = 100}}, dtype(), any_device(), target().first);
  const Numbers sinks = normals(4, 9);
  const Tensor logits = tensor_of(sinks, {4}, dtype(), any_device());
  Tensor d_sinks = garbage({4}, accumulate_dtype(), any_device());
  ops::attention(call.x, call.options, call.y);
  ops::attention_sink(&logits, call.y);
  ops::attention_backward(call.dout, call.x, call.y, call.options, call.dx);
  ops::attention_sink_backward(call.dout, call.y, logits, d_sinks, 0);
  for (const Tensor& zero : {call.y.out, call.dx.q.base, call.dx.k.base, call.dx.v.base, d_sinks})
    for (const double x : to_doubles(zero)) ASSERT_EQ(x, 0);
  const Numbers lse = to_doubles(call.y.lse);
  for (std::size_t i = 0; i < lse.size(); ++i)
    ASSERT_NEAR(lse[i], sinks[i / static_cast<std::size_t>(kSinkSizes.queries) % 4], 1e-6);
}

TEST(AttentionSinkChecksTest, RejectsMismatchedShapes) {
  CpuDevice device;
  AttentionResult y{Tensor::zeros({3, 1, 8}, DType::F32, device), Tensor::zeros({1, 2, 3}, DType::F32, device)};
  const Tensor sinks = Tensor::zeros({3}, DType::F32, device);
  EXPECT_CONTAINS(error_of([&] { ops::attention_sink(&sinks, y); }), "attention_sink: sinks must have 2 elements");
  y.lse = Tensor::zeros({1, 2, 4}, DType::F32, device);
  EXPECT_CONTAINS(error_of([&] { ops::attention_sink(nullptr, y); }), "shapes of out and lse do not match");
}

class ChunkStartsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, ChunkStartsTest,
                         testing::Combine(testing::Values(DType::F32), testing::ValuesIn(all_targets())), ops_name);

TEST_P(ChunkStartsTest, CountsChunksFromBeginningOfDocuments) {
  const PositionRanges at{.first = 2, .split = 3, .second = 9};  // positions 2, 3, 4, 9, 10, 11, 12
  const std::vector<i32> documents{0, 1, 3, 1, 3, 1, 3, 1, 10, 1, 10, 1, 10, 1};
  const auto outputs = run([&](Device& device) {
    const Tensor begins = integers_of(documents, device).view({7, 2});
    Tensor plain = Tensor::empty({7, 2}, DType::I32, device), inside = Tensor::empty({7, 2}, DType::I32, device);
    ops::chunk_starts(at, 4, nullptr, plain);
    ops::chunk_starts(at, 4, &begins, inside);
    return std::vector{plain, inside};
  });
  EXPECT_EQ(read_values<i32>(outputs[0]), (std::vector<i32>{0, 0, 0, 0, 4, 4, 8, 8, 8, 8, 8, 8, 12, 12}));
  EXPECT_EQ(read_values<i32>(outputs[1]), (std::vector<i32>{0, 1, 3, 1, 3, 1, 7, 9, 10, 9, 10, 9, 10, 9}));
}

}  // namespace
}  // namespace mcpp::test
