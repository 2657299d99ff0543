#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class RopeOps : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, RopeOps, every_type(), ops_name);

struct RopeCase {
  i64 seq, batch, groups, q_per_group, head_dim, rotated;
};
const std::vector<RopeCase> kCases{{1, 1, 1, 1, 2, 2},    {5, 2, 2, 3, 16, 16},   {9, 3, 1, 2, 64, 32},
                                   {70, 2, 3, 1, 34, 34}, {4, 1, 2, 2, 128, 128}, {0, 2, 1, 1, 8, 8}};

TEST_P(RopeOps, RopeRotatesTheQueriesOfAFusedTensor) {
  constexpr i64 kFirst = 3;
  for (const RopeCase& c : kCases) {
    const Shape shape{c.seq, c.batch, c.groups, c.q_per_group + 2, c.head_dim};
    const i64 half = c.rotated / 2;
    const Numbers x = normals(numel(shape), 1);
    const auto outputs = run([&](Device& device) {
      Tensor cos = Tensor::empty({c.seq + kFirst, half}, wide(), device), sin = Tensor::like(cos);
      ops::rope_table(10000, c.rotated, cos, sin);
      const Tensor turned = tensor_of(x, shape, dtype(), device), back = tensor_of(x, shape, dtype(), device);
      PackedHeads heads = packed_heads(turned), returning = packed_heads(back);
      ops::rope(heads.q, cos, sin, kFirst, false);
      ops::rope(returning.q, cos, sin, kFirst, false);
      ops::rope(returning.q, cos, sin, kFirst, true);
      return std::vector{turned, back};
    });
    Numbers expected = x;
    for (i64 row = 0; row < c.seq * c.batch * c.groups; ++row) {
      const double position = static_cast<double>(row / (c.batch * c.groups) + kFirst);
      for (i64 head = 0; head < c.q_per_group; ++head) {
        double* channels = expected.data() + (row * (c.q_per_group + 2) + head) * c.head_dim;
        for (i64 i = 0; i < half; ++i) {
          const double angle =
              position * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotated));
          const double a = channels[i], b = channels[i + half];
          channels[i] = a * std::cos(angle) - b * std::sin(angle);
          channels[i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
    expect_close(outputs[0], expected, 2 * tolerance(dtype()), is_narrow(dtype()) ? 0.01 : 2, "rope");
    expect_close(outputs[1], x, 2 * tolerance(dtype()), 2, "rope and back");
  }
}

TEST(RopeGradient, IsTheInverseRotation) {
  CpuDevice device;
  const Tensor qkv = random_tensor({6, 2, 2, 4, 8}, DType::F64, device, 1);
  const Tensor dy = random_tensor({6, 2, 2, 4, 8}, DType::F64, device, 2);
  Tensor cos = Tensor::empty({6, 4}, DType::F64, device), sin = Tensor::like(cos), y = Tensor::like(qkv),
         dx = Tensor::like(qkv);
  ops::rope_table(100, 8, cos, sin);
  const auto forward = [&] {
    ops::copy(qkv, y);
    PackedHeads heads = packed_heads(y);
    ops::rope(heads.k, cos, sin, 0, false);
    return dot(y, dy);
  };
  ops::copy(dy, dx);
  PackedHeads heads = packed_heads(dx);
  ops::rope(heads.k, cos, sin, 0, true);
  expect_gradient(forward, qkv, dx, "rope");
}

}  // namespace
}  // namespace mcpp::test
