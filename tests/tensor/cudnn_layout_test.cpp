#include "tensor/cuda/attention/cudnn_layout.h"

#include <gtest/gtest.h>

#include <map>

namespace mcpp {
namespace {

i64 element_offset(const Heads& x, i64 s, i64 b, i64 head) {
  return s * x.seq_stride + b * x.batch_stride + head / x.group_size * x.group_stride +
         head % x.group_size * x.head_dim;
}

// Checks that every row of heads is at the address given by the shape, at [batch, heads] or at [batch * key heads,
// heads per key].
void expect_same_rows(const CudnnShape& shape, const Heads& x) {
  const i64 folded = shape.dims[0] / x.batch;
  ASSERT_EQ(shape.dims, (std::array{x.batch * folded, x.heads / folded, x.seq, x.head_dim}));
  EXPECT_EQ(shape.strides[3], 1);
  for (i64 b = 0; b < x.batch; ++b) {
    for (i64 head = 0; head < x.heads; ++head) {
      const i64 per = shape.dims[1], first = b * folded + head / per;
      for (i64 s = 0; s < x.seq; ++s) {
        EXPECT_EQ(first * shape.strides[0] + head % per * shape.strides[1] + s * shape.strides[2],
                  element_offset(x, s, b, head));
      }
    }
  }
}

struct Layout {
  i64 batch, groups, q_per_group;
};

class CudnnLayoutTest : public testing::TestWithParam<Layout> {
 protected:
  CpuDevice device_;
};

TEST_P(CudnnLayoutTest, PlacesEveryRowOfFusedQkv) {
  const auto [batch, groups, q_per_group] = GetParam();
  const QkvHeads x = packed_heads(Tensor::empty({5, batch, groups, q_per_group + 2, 8}, DType::BF16, device_));
  const Heads out = dense_heads(Tensor::empty({5, batch, groups * q_per_group * 8}, DType::BF16, device_), x.q.heads);
  const std::array<const Heads*, 4> all{&x.q, &x.k, &x.v, &out};
  for (bool prefers_folded : {false, true}) {
    const std::vector<CudnnShape> shapes = cudnn_shapes(all, x.k.heads, prefers_folded);
    ASSERT_EQ(shapes.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      expect_same_rows(shapes[i], *all[i]);
      EXPECT_EQ(shapes[i].dims[0], shapes[0].dims[0]);
    }
    EXPECT_EQ(shapes[0].dims[0], prefers_folded || (groups > 1 && q_per_group > 1) ? batch * groups : batch);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudnnLayoutTest,
                         testing::Values(Layout{1, 1, 1}, Layout{3, 1, 1}, Layout{2, 4, 1}, Layout{2, 1, 4},
                                         Layout{1, 3, 2}, Layout{2, 3, 4}));

TEST_P(CudnnLayoutTest, DescribesDenseTensorsWithoutAllocation) {
  const auto [batch, groups, q_per_group] = GetParam();
  const QkvHeads x = packed_heads(Tensor::empty({5, batch, groups, q_per_group + 2, 8}, DType::BF16, device_));
  for (const Heads* heads : {&x.q, &x.k}) {
    const Heads dense = dense_heads(Tensor::empty({5, batch, heads->heads * 8}, DType::BF16, device_), heads->heads);
    const Heads layout = dense_heads_layout(*heads);
    for (const bool prefers_folded : {false, true})
      EXPECT_EQ(cudnn_shapes(std::array{&layout}, x.k.heads, prefers_folded),
                cudnn_shapes(std::array{&dense}, x.k.heads, prefers_folded));
  }
}

TEST(CudnnShapesTest, AreEmptyForUnevenStrides) {
  CpuDevice device;
  QkvHeads x = packed_heads(Tensor::empty({5, 2, 3, 4, 8}, DType::BF16, device));
  x.q.batch_stride += 8;  // now neither the heads nor the pairs (sample, group) are evenly spaced
  EXPECT_TRUE(cudnn_shapes(std::array<const Heads*, 2>{&x.q, &x.k}, 3, false).empty());
}

// Plans are cached by their case and reused for other tensors, so that the case must contain everything from which a
// graph is built.
TEST(AttentionCaseTest, DiffersInEverySizeAndStride) {
  CpuDevice device;
  const auto case_of = [&](const Shape& qkv, bool causal, bool backward) {
    const QkvHeads x = packed_heads(Tensor::empty(qkv, DType::BF16, device));
    return AttentionCase{backward, causal, cudnn_shapes(std::array{&x.q, &x.k, &x.v}, x.k.heads, backward)};
  };
  const Shape qkv{5, 2, 3, 4, 8};
  EXPECT_EQ(case_of(qkv, true, false), case_of(qkv, true, false)) << "in other memory";
  std::map<AttentionCase, int> plans{{case_of(qkv, true, false), 0}};
  EXPECT_TRUE(plans.emplace(case_of(qkv, false, false), 0).second);
  EXPECT_TRUE(plans.emplace(case_of(qkv, true, true), 0).second);
  AttentionCase half = case_of(qkv, true, false);
  half.dtype = DType::F16;
  EXPECT_TRUE(plans.emplace(half, 0).second);
  AttentionCase in_any_order = case_of(qkv, true, true);
  in_any_order.accumulates = true;
  EXPECT_TRUE(plans.emplace(in_any_order, 0).second);
  for (std::size_t axis = 0; axis < qkv.size(); ++axis) {
    Shape other = qkv;
    ++other[axis];
    EXPECT_TRUE(plans.emplace(case_of(other, true, false), 0).second) << "axis " << axis;
  }
}

TEST(CudnnShapesTest, BackwardPartsStayWithinLimit) {
  EXPECT_EQ(backward_part(CudnnShape::dense(64, 1, 1024, 64)), 64);
  EXPECT_EQ(backward_part(CudnnShape::dense(64, 1, 4096, 64)), 32);
  EXPECT_EQ(backward_part(CudnnShape::dense(64, 1, 4097, 64)), 16);  // padded to 4224; 30 does not divide 64
  EXPECT_EQ(backward_part(CudnnShape::dense(16, 4, 4096, 128)), 8);
  EXPECT_EQ(backward_part(CudnnShape::dense(7, 4, 131072, 128)), 1);
}

TEST(CudnnShapesTest, BackwardBlocksStayWithinLimit) {
  const auto block = [](i64 heads, i64 seq) { return backward_block(CudnnShape::dense(2, heads, seq, 128)); };
  EXPECT_EQ(block(4, 8192), 8192);
  EXPECT_EQ(block(1, 16384), 16384);
  EXPECT_EQ(block(1, 32768), 16384);
  EXPECT_EQ(block(4, 32768), 8192);
  EXPECT_EQ(block(4, 131072), 8192);
  EXPECT_EQ(block(8, 131072), 8192);
  EXPECT_EQ(block(32, 131072), 4096);
  EXPECT_EQ(block(1, 3 * 128 * 128), 16384);
  EXPECT_EQ(block(4, 100), 100);
  EXPECT_EQ(block(4, 20000), 0);  // not a multiple of the tile size
  for (const i64 seq : {i64{25600}, i64{32768}, i64{98304}, i64{1} << 20}) {
    for (const i64 heads : {1, 3, 5, 8, 16}) {
      const i64 rows = block(heads, seq);
      ASSERT_GT(rows, 0) << seq << " " << heads;
      EXPECT_EQ(seq % rows, 0);
      EXPECT_LE(probability_bytes(CudnnShape::dense(1, heads, rows, 128)), kMaxProbabilityBytes);
    }
  }
}

}  // namespace
}  // namespace mcpp
