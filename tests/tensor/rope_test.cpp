#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"
#include "tests/support/positions.h"

namespace mcpp::test::rope_test {
namespace {

class RopeOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, RopeOpsTest, every_type(), ops_name);

struct RopeCase {
  i64 seq, batch, groups, q_per_group, head_dim, rotated;
};
const std::vector<RopeCase> kCases{{1, 1, 1, 1, 2, 2},    {5, 2, 2, 3, 16, 16},   {9, 3, 1, 2, 64, 32},
                                   {70, 2, 3, 1, 34, 34}, {4, 1, 2, 2, 128, 128}, {0, 2, 1, 1, 8, 8}};

std::vector<double> frequencies(double base, i64 dim) {
  std::vector<double> result;
  for (i64 i = 0; i < dim; i += 2) result.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(dim)));
  return result;
}

/// Returns x with every query head rotated to the position of its token.
Numbers rotated(const RopeCase& c, const PositionCase& position_case, Numbers x) {
  const i64 half = c.rotated / 2;
  const std::vector<i64> positions = position_case.in_documents(c.seq, c.batch);
  for (i64 token = 0; token < c.seq * c.batch; ++token) {
    const auto position = static_cast<double>(positions[static_cast<std::size_t>(token)]);
    for (i64 head = 0; head < c.groups * c.q_per_group; ++head) {
      const i64 group = token * c.groups + head / c.q_per_group;
      double* channels = x.data() + (group * (c.q_per_group + 2) + head % c.q_per_group) * c.head_dim;
      for (i64 i = 0; i < half; ++i) {
        const double angle =
            position * std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotated));
        const double lower = channels[i], upper = channels[i + half];
        channels[i] = lower * std::cos(angle) - upper * std::sin(angle);
        channels[i + half] = upper * std::cos(angle) + lower * std::sin(angle);
      }
    }
  }
  return x;
}

TEST_P(RopeOpsTest, RotatesQueriesOfFusedTensor) {
  for (const RopeCase& c : kCases) {
    for (const PositionCase& position_case : every_position_case(c.seq)) {
      const Shape shape{c.seq, c.batch, c.groups, c.q_per_group + 2, c.head_dim};
      const Numbers x = normals(numel(shape), 1);
      const auto outputs = run([&](Device& device) {
        Tensor cos = Tensor::empty({c.seq + 5, c.rotated / 2}, accumulate_dtype(), device), sin = Tensor::like(cos);
        ops::rope_table(frequencies(10000, c.rotated), 1, cos, sin);
        const Positions positions = position_case.of(c.seq, c.batch, device);
        const Tensor turned = tensor_of(x, shape, dtype(), device), back = tensor_of(x, shape, dtype(), device);
        QkvHeads heads = packed_heads(turned), returning = packed_heads(back);
        ops::rope(heads.q, cos, sin, positions, false);
        ops::rope(returning.q, cos, sin, positions, false);
        ops::rope(returning.q, cos, sin, positions, true);
        return std::vector{turned, back};
      });
      expect_close(outputs[0], rotated(c, position_case, x), 2 * tolerance(dtype()),
                   is_low_precision(dtype()) ? 0.01 : 2, "rope");
      expect_close(outputs[1], x, 2 * tolerance(dtype()), 2, "rope and back");
    }
  }
}

TEST(RopeArgumentTest, RejectsInvalidArguments) {
  CpuDevice device;
  const Tensor qkv = random_tensor({6, 2, 1, 3, 8}, DType::F32, device, 1);
  Tensor cos = Tensor::empty({8, 4}, DType::F32, device), sin = Tensor::like(cos);
  ops::rope_table(frequencies(100, 8), 1, cos, sin);
  Heads q = packed_heads(qkv).q;
  ops::rope(q, cos, sin, {after(2), {}}, false);
  EXPECT_THROW(ops::rope(q, cos, sin, {after(3), {}}, false), Error);  // the last row is past the table
  EXPECT_THROW(ops::rope(q, cos, sin, {{.first = 0, .split = 3, .second = 6}, {}}, false), Error);
  EXPECT_THROW(ops::rope(q, cos, sin, {{}, integers_of({0, 0, 0}, device)}, false), Error);
}

TEST(RopeGradientTest, IsInverseRotation) {
  CpuDevice device;
  const Tensor qkv = random_tensor({6, 2, 2, 4, 8}, DType::F64, device, 1);
  const Tensor dy = random_tensor({6, 2, 2, 4, 8}, DType::F64, device, 2);
  Tensor cos = Tensor::empty({6, 4}, DType::F64, device), sin = Tensor::like(cos), y = Tensor::like(qkv),
         dx = Tensor::like(qkv);
  ops::rope_table(frequencies(100, 8), 1, cos, sin);
  const auto forward = [&] {
    ops::copy(qkv, y);
    QkvHeads heads = packed_heads(y);
    ops::rope(heads.k, cos, sin, {}, false);
    return dot(y, dy);
  };
  ops::copy(dy, dx);
  QkvHeads heads = packed_heads(dx);
  ops::rope(heads.k, cos, sin, {}, true);
  expect_gradient(forward, qkv, dx, "rope");
}

}  // namespace
}  // namespace mcpp::test::rope_test
