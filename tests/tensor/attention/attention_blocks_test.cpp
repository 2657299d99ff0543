#include "tensor/ops/attention_blocks.h"

#include "tests/support/attention.h"
#include "tests/support/errors.h"

namespace mcpp::test {
namespace {

class AttentionBlocksTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionBlocksTest, every_type(), ops_name);

bool unblocked_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const AttentionOptions& options, QkvHeads& dx) {
  ops::attention_backward(dout, x, y, options, dx);
  return true;
}

void run_by_blocks(AttentionCall& call, i64 rows, const BlockBackward& backward = unblocked_backward) {
  ops::attention(call.x, call.options, call.y);
  EXPECT_TRUE(attention_backward_by_blocks(call.dout, call.x, call.y, call.options, call.dx, rows, backward));
}

TEST_P(AttentionBlocksTest, AddUpToFullGradient) {
  const std::vector<std::pair<AttentionCase, i64>> cases{
      {{{128, 128, 2, 4, 2, 32}}, 32},
      {{{128, 128, 2, 4, 2, 32}}, 200},  // one block
      {{{70, 70, 1, 4, 1, 16}}, 32},     // the last block is shorter
      {{{40, 140, 1, 4, 2, 24}, after(100)}, 30},
      {{{100, 33, 1, 2, 2, 16}, after(33)}, 16},
      {{{70, 70, 1, 2, 1, 16}, {}, after(70)}, 20},       // no key is visible
      {{{3, 90, 1, 4, 2, 16}, after(50)}, 20},            // the last keys are not visible
      {{{96, 96, 2, 2, 1, 16}, {}, {}, 0.2f, 1, 4}, 32},  // documents, dropout
      {{{96, 96, 1, 2, 1, 16}, {}, {}, 0, 1, 0, 1, 20, 1.5}, 32},
      {{{96, 96, 1, 2, 1, 32}, zigzag(1, 3, 48), zigzag(0, 3, 48)}, 32},
  };
  for (const auto& [c, rows] : cases) {
    SCOPED_TRACE(str(describe(c, dtype()), ", blocks of ", rows));
    AttentionCall call(c, dtype(), any_device(), target().first);
    run_by_blocks(call, rows);
    expect_truth(call, attention_tolerance(dtype()));
  }
  AttentionCall packed = AttentionCall::packed({{70, 70, 2, 6, 2, 40}}, dtype(), any_device(), target().first);
  run_by_blocks(packed, 35);
  expect_truth(packed, attention_tolerance(dtype()));
}

TEST_P(AttentionBlocksTest, AreBitwiseReproducible) {
  run([&](Device& device) {
    AttentionCall call({{90, 90, 1, 4, 2, 24}}, dtype(), device, target().first);
    run_by_blocks(call, 30);
    return std::vector<Tensor>{call.dx.q.base, call.dx.k.base, call.dx.v.base};
  });
}

// Kernels require that in every block all pairs are below the diagonal, or that the block itself is a triangle.
TEST(AttentionBlockTest, IsTriangularOrFullAndVisitedOnce) {
  CpuDevice device;
  AttentionCall call({{64, 64, 1, 2, 1, 8}}, DType::F32, device);
  std::vector<std::pair<i64, i64>> visited;
  run_by_blocks(call, 16, [&](auto& dout, auto& x, auto& y, auto& options, auto& dx) {
    EXPECT_EQ(x.q.seq, 16);
    EXPECT_EQ(x.k.seq, 16);
    EXPECT_EQ(dx.k.base.dtype(), DType::F32);
    const i64 query = options.queries.ranges.at(0), key = options.keys.at(0);
    EXPECT_TRUE(options.queries.ranges == options.keys || key + 15 <= query);
    visited.emplace_back(query, key);
    return unblocked_backward(dout, x, y, options, dx);
  });
  EXPECT_EQ(visited,
            (std::vector<std::pair<i64, i64>>{
                {0, 0}, {16, 0}, {16, 16}, {32, 0}, {32, 16}, {32, 32}, {48, 0}, {48, 16}, {48, 32}, {48, 48}}));
}

TEST(AttentionBlockTest, ReturnsFalseWhenBlockIsRejected) {
  CpuDevice device;
  AttentionCall call({{64, 64, 1, 2, 1, 8}}, DType::F32, device);
  ops::attention(call.x, call.options, call.y);
  int calls = 0;
  const auto fails_on_second_call = [&](auto& dout, auto& x, auto& y, auto& options, auto& dx) {
    return ++calls < 2 && unblocked_backward(dout, x, y, options, dx);
  };
  EXPECT_FALSE(
      attention_backward_by_blocks(call.dout, call.x, call.y, call.options, call.dx, 16, fails_on_second_call));
  EXPECT_EQ(calls, 2);
  EXPECT_NE(error_of([&] { run_by_blocks(call, 0); }), "");
  EXPECT_NE(error_of([&] { slice_rows(call.x.q, 60, 5); }), "");
}

// Without blocks, memory would grow with the square of the sequence length.
TEST(AttentionBlockTest, BoundsMemoryOfKernel) {
  constexpr i64 kSeq = 256, kRows = 32;
  CpuDevice device;
  AttentionCall call({{kSeq, kSeq, 1, 2, 2, 8}}, DType::F32, device);
  ops::attention(call.x, call.options, call.y);
  device.reset_peak();
  const i64 before = device.memory().total.bytes;
  const auto with_scores = [&](auto& dout, auto& x, auto& y, auto& options, auto& dx) {
    const Tensor scores = Tensor::empty({x.q.heads, x.q.seq, x.k.seq}, DType::F32, device);
    return unblocked_backward(dout, x, y, options, dx);
  };
  run_by_blocks(call, kRows, with_scores);
  EXPECT_LT(device.memory().total.peak - before, 2 * kSeq * kSeq * 4 / 2);
}

/// Returns `rows` rows, which repeat the first 1024 rows.
Tensor long_tensor(i64 rows, i64 heads, i64 dim, u64 seed, Device& device) {
  constexpr i64 kSamples = 1024;
  const Tensor samples = random_tensor({kSamples, heads * dim}, DType::BF16, device, seed, 1, 0);
  std::vector<i32> sources;
  for (i64 row = 0; row < rows; ++row) sources.push_back(static_cast<i32>(row % kSamples));
  Tensor all = Tensor::empty({rows, heads * dim}, DType::BF16, device);
  ops::gather_rows(samples, integers_of(sources, device), all);
  return all.view({rows, 1, heads, dim});
}

/// Returns 1024 evenly spaced rows of dense heads.
Numbers sample_rows(const Heads& x) {
  constexpr i64 kRows = 1024;
  std::vector<i32> rows;
  for (i64 i = 0; i < kRows; ++i) rows.push_back(static_cast<i32>(i * x.seq / kRows + i % (x.seq / kRows)));
  Tensor sampled = Tensor::like(x.base, {kRows, x.seq_stride});
  ops::gather_rows(x.base.view({x.seq, x.seq_stride}), integers_of(rows, x.base.device()), sampled);
  return to_doubles(sampled);
}

/// Returns part of the gradients of grouped queries over `seq` tokens, and the memory used beyond the tensors
/// themselves.
std::pair<std::vector<Numbers>, i64> gradients_of_long(i64 seq, Device& device) {
  constexpr i64 kHeads = 8, kGroups = 2, kDim = 128;
  const QkvHeads x{dense_heads(long_tensor(seq, kHeads, kDim, 1, device)),
                   dense_heads(long_tensor(seq, kGroups, kDim, 2, device)),
                   dense_heads(long_tensor(seq, kGroups, kDim, 3, device))};
  const Tensor dout = long_tensor(seq, kHeads, kDim, 4, device).view({seq, 1, kHeads * kDim});
  AttentionResult y{Tensor::like(dout), Tensor::empty({1, kHeads, seq}, DType::F32, device)};
  QkvHeads dx{dense_heads(Tensor::like(x.q.base)), dense_heads(Tensor::like(x.k.base)),
              dense_heads(Tensor::like(x.v.base))};
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(kDim));
  device.reset_peak();
  const i64 before = device.memory().total.bytes;
  ops::attention(x, options, y);
  ops::attention_backward(dout, x, y, options, dx);
  const i64 more = device.memory().total.peak - before;
  return {{sample_rows(dx.q), sample_rows(dx.k), sample_rows(dx.v)}, more};
}

class LongSequenceAttentionTest : public testing::TestWithParam<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Devices, LongSequenceAttentionTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

// On a GPU the probabilities of 32k and 128k tokens would take 16 and 256 GiB.
TEST_P(LongSequenceAttentionTest, FitsInMemoryInEitherSummationOrder) {
  if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const bool is_gpu = GetParam() == DeviceType::Cuda;
  const std::unique_ptr<Device> device = make_device(GetParam(), 2),
                                other = is_gpu ? make_gpu(0, {.any_order = true}) : make_device(GetParam());
  for (const i64 seq : is_gpu ? std::vector<i64>{32 << 10, 128 << 10} : std::vector<i64>{2 << 10}) {
    const i64 limit = is_gpu ? i64{6} << 30 : 8 * seq * seq;
    const auto [in_order, more] = gradients_of_long(seq, *device);
    EXPECT_LT(more, limit) << seq;
    const auto [in_any_order, other_bytes] = gradients_of_long(seq, *other);
    EXPECT_LT(other_bytes, limit) << seq;
    for (std::size_t i = 0; i < in_order.size(); ++i) {
      const auto value = [&](i64 k) { return in_any_order[i][static_cast<std::size_t>(k)]; };
      EXPECT_LT(attention_error(in_order[i], value), attention_tolerance(DType::BF16).gradient) << seq << " " << i;
    }
  }
}

}  // namespace
}  // namespace mcpp::test
