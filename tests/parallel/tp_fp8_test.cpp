// Linear layers in fp8, on one and on several ranks, compared with fp64 with operands rounded as unsharded tensors by a
// table of fp8 values. A part of each tensor, held by other ranks, is so small relative to the rest that a scale of its
// own would change its values.
#include <gtest/gtest.h>

#include "comm/local.h"
#include "parallel/tp/linear.h"
#include "parallel/tp/mappings.h"
#include "tests/support/boxes.h"
#include "tests/support/fp8.h"

namespace mcpp::tp_fp8_test {
namespace {

using test::Numbers;

constexpr i64 kSeq = 8, kBatch = 4, kIn = 32, kOut = 48, kRows = kSeq * kBatch;
/// Small relative to the rest: the values are then in the subnormal range, which has fewer bits.
constexpr double kSmall = 0x1p-13;

/// Returns [rows, columns], in which the second half of the rows or of the columns is small.
Numbers uneven(i64 rows, i64 columns, bool by_rows, u64 seed) {
  Numbers x = test::normals(rows * columns, seed, DType::BF16);
  for (i64 i = 0; i < rows * columns; ++i) {
    const bool is_small = by_rows ? i / columns >= rows / 2 : i % columns >= columns / 2;
    if (is_small) x[static_cast<std::size_t>(i)] *= kSmall;
  }
  return x;
}

struct Case {
  bool is_row_parallel, sequence_parallel, delay_wgrad_compute;
  Fp8Format gradients;
};

/// Inputs of the layers. Ranks hold parts of different magnitude of what the layers shard.
struct Data {
  Numbers x, w, dy;  // [rows, in], [out, in], [rows, out]

  explicit Data(const Case& c)
      : x(uneven(kRows, kIn, !c.is_row_parallel && c.sequence_parallel, 1)),
        w(uneven(kOut, kIn, !c.is_row_parallel, 2)),
        dy(uneven(kRows, kOut, c.is_row_parallel && c.sequence_parallel, 3)) {}
};

/// op(a) op(b), and the sum of the magnitudes of the products.
struct Truth {
  Numbers value, magnitude;
};
Truth product(const Numbers& a, i64 a_row, i64 a_step, const Numbers& b, i64 b_column, i64 b_step, i64 m, i64 n,
              i64 k) {
  Truth t;
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (i64 l = 0; l < k; ++l) {
        const double one = a[static_cast<std::size_t>(i * a_row + l * a_step)] *
                           b[static_cast<std::size_t>(j * b_column + l * b_step)];
        sum += one, magnitude += std::abs(one);
      }
      t.value.push_back(sum), t.magnitude.push_back(magnitude);
    }
  }
  return t;
}

void expect_part(const Tensor& actual, const Truth& truth, const Box& box, double tolerance, const char* what) {
  const Numbers result = test::to_doubles(actual), value = test::part_of(truth.value, box),
                magnitude = test::part_of(truth.magnitude, box);
  ASSERT_EQ(result.size(), value.size()) << what;
  for (std::size_t i = 0; i < result.size(); ++i)
    ASSERT_NEAR(result[i], value[i], tolerance * magnitude[i] + 1e-30) << what << "[" << i << "]";
}

std::unique_ptr<Module> make_layer(const Case& c, Communicator& tp) {
  const LinearOptions options{.bias = false,
                              .sequence_parallel = c.sequence_parallel,
                              .fp8 = Fp8Recipe{.gradients = c.gradients, .holders = {&tp}}};
  if (c.is_row_parallel) return std::make_unique<RowParallelLinear>("row", kIn, kOut, tp, options);
  return std::make_unique<ColumnParallelLinear>("column", kIn, Shape{kOut}, 0, tp, options);
}

/// Returns the part of [s, b, columns] that a rank has: all of it, or a shard of the sequence or of the columns.
Box part_box(i64 columns, int axis, Communicator& tp) {
  const Shape whole{kSeq, kBatch, columns};
  return axis < 0 ? slab(whole, 0, 0, kSeq) : split_box(whole, axis, tp);
}

void expect_reference(const Case& c, int ranks) {
  const Data data(c);
  const auto rounded = [&](const Numbers& x, Fp8Format format) {
    return test::in_fp8(x, format, test::largest_magnitude(x));
  };
  const Numbers x = rounded(data.x, Fp8Format::E4M3), w = rounded(data.w, Fp8Format::E4M3),
                dy = rounded(data.dy, c.gradients);
  const Truth y = product(x, kIn, 1, w, kIn, 1, kRows, kOut, kIn);
  const Truth dx = product(dy, kOut, 1, w, 1, kIn, kRows, kIn, kOut);
  const Truth dw = product(dy, 1, kOut, x, 1, kIn, kOut, kIn, kRows);
  const int outside = c.sequence_parallel ? 0 : -1;
  run_local_ranks(ranks, [&](Communicator& tp, int) {
    CpuDevice device;
    const Box x_box = part_box(kIn, c.is_row_parallel ? 2 : outside, tp),
              y_box = part_box(kOut, c.is_row_parallel ? outside : 2, tp);
    const auto layer = make_layer(c, tp);
    Param* weight = nullptr;
    layer->visit([&](Param& param) {
      weight = &param;
      param.value = test::tensor_of(test::part_of(data.w, param.box), param.box.shape, DType::BF16, device);
      param.main_grad = test::garbage(param.box.shape, DType::F32, device);
    });
    const auto part = [&](const Numbers& all, const Box& box) {
      return test::tensor_of(test::part_of(all, box), box.shape, DType::BF16, device);
    };
    MicrobatchContext context;
    context.delay_wgrad_compute = c.delay_wgrad_compute;
    // bf16 rounds the result, and before it the parts of a sum over ranks. Gradients of weights are in fp32.
    constexpr double kOnce = 0x1p-8, kTwice = 2 * kOnce;
    expect_part(layer->forward(part(data.x, x_box), context), y, y_box, c.is_row_parallel ? kTwice : kOnce, "y");
    EXPECT_LE(context.saved_tensors.bytes(), (kRows * kIn * 2) + 8) << "the input and two values";
    expect_part(layer->backward(part(data.dy, y_box), context), dx, x_box, c.is_row_parallel ? kOnce : kTwice, "dx");
    context.run_delayed_wgrads();
    EXPECT_TRUE(context.saved_tensors.empty());
    expect_part(weight->main_grad, dw, weight->box, 1e-6, "dw");
  });
}

class Fp8LinearTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Fp8LinearTest, testing::Values(1, 2, 4));

TEST_P(Fp8LinearTest, MatchesReferenceRoundedAsUnshardedTensors) {
  for (const bool is_row_parallel : {false, true})
    for (const bool sequence_parallel : {false, true})
      for (const bool defers : {false, true})
        for (const Fp8Format gradients : {Fp8Format::E4M3, Fp8Format::E5M2}) {
          SCOPED_TRACE(str(is_row_parallel ? "row" : "column", sequence_parallel ? " sequence" : "",
                           defers ? " deferred" : "", gradients == Fp8Format::E5M2 ? " hybrid" : " e4m3"));
          expect_reference({is_row_parallel, sequence_parallel, defers, gradients}, GetParam());
          if (HasFailure()) return;
        }
}

TEST(LinearWithoutFp8Test, ComputesInModelType) {
  const Case c{false, false, false, Fp8Format::E4M3};
  const Data data(c);
  CpuDevice device;
  const auto self = make_self_communicator();
  ColumnParallelLinear layer("column", kIn, {kOut}, 0, *self, {.bias = false});
  layer.visit([&](Param& param) { param.value = test::tensor_of(data.w, param.box.shape, DType::BF16, device); });
  const Tensor x = test::tensor_of(data.x, {kSeq, kBatch, kIn}, DType::BF16, device);
  MicrobatchContext context;
  const Truth y = product(data.x, kIn, 1, data.w, kIn, 1, kRows, kOut, kIn);
  expect_part(layer.forward(x, context), y, slab({kSeq, kBatch, kOut}, 0, 0, kSeq), 0x1p-8, "y");
  EXPECT_EQ(context.saved_tensors.bytes(), x.bytes());
}

}  // namespace
}  // namespace mcpp::tp_fp8_test
