// Linear layers in fp8, on one and on several ranks, compared with fp64 with operands rounded as unsharded tensors by a
// table of fp8 values. A part of each tensor, held by other ranks, is so small relative to the rest that a scale of its
// own would change its values.
#include <gtest/gtest.h>

#include <optional>

#include "comm/local.h"
#include "parallel/tp/linear.h"
#include "parallel/tp/mappings.h"
#include "tests/support/boxes.h"
#include "tests/support/fp8.h"

namespace mcpp::tp_fp8_test {
namespace {

using test::Numbers;

constexpr i64 kSeq = 16, kBatch = 4, kRows = kSeq * kBatch;
/// Samples of the microbatch, which key stochastic rounding.
const std::vector<i64> kSamples{3, 9, 1, 4};
constexpr u64 kSeed = 11;
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
  PassRecipes recipe;
  i64 in = 64, out = 96;
};

/// Inputs of the layers. Ranks hold parts of different magnitude of what the layers shard.
struct Data {
  Numbers x, w, dy;  // [rows, in], [out, in], [rows, out]

  explicit Data(const Case& c)
      : x(uneven(kRows, c.in, !c.is_row_parallel && c.sequence_parallel, 1)),
        w(uneven(c.out, c.in, !c.is_row_parallel, 2)),
        dy(uneven(kRows, c.out, c.is_row_parallel && c.sequence_parallel, 3)) {}
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

std::unique_ptr<Module> make_layer(const Case& c, Communicator& tp, AmaxHistory* history = nullptr) {
  const LinearOptions options{
      .bias = false,
      .sequence_parallel = c.sequence_parallel,
      .fp8 = Fp8Recipe{.passes = c.recipe, .holders = {&tp}, .seed = kSeed, .history = history}};
  if (c.is_row_parallel) return std::make_unique<RowParallelLinear>("row", c.in, c.out, tp, options);
  return std::make_unique<ColumnParallelLinear>("column", c.in, Shape{c.out}, 0, tp, options);
}

/// Returns the part of [s, b, columns] that a rank has: all of it, or a shard of the sequence or of the columns.
Box part_box(i64 columns, int axis, Communicator& tp) {
  const Shape whole{kSeq, kBatch, columns};
  return axis < 0 ? slab(whole, 0, 0, kSeq) : split_box(whole, axis, tp);
}

/// Returns an operand of a GEMM as the recipe rounds the unsharded matrix.
Numbers rounded(const Numbers& x, i64 columns, GemmRecipe recipe, Fp8Format format, const BlockShape& block) {
  if (recipe == GemmRecipe::Bf16 || recipe == GemmRecipe::Nvfp4) return x;  // NVFP4: Reference::set_nvfp4()
  if (recipe == GemmRecipe::Tensorwise) return test::in_fp8(x, format, test::largest_magnitude(x));
  return test::in_fp8_blocks(x, columns, format, block);
}

/// Returns a matrix that ops::round_to_nvfp4() rounds, times the scale of the matrix.
Numbers in_nvfp4(const Numbers& x, i64 columns, const Nvfp4Scale& scale, const std::optional<u32>& signs) {
  CpuDevice device;
  const Shape shape{static_cast<i64>(x.size()) / columns, columns};
  Tensor from = test::tensor_of(x, shape, DType::BF16, device), y = test::garbage(shape, DType::BF16, device);
  if (signs) {
    ops::random_hadamard(from, *signs, y);
    std::swap(from, y);
  }
  ops::round_to_nvfp4(from, scale, y);
  Numbers values = test::to_doubles(y);
  for (double& value : values) value *= nvfp4_matrix_scale(*scale.amax.data<float>(), scale.headroom);
  return values;
}

/// Results of the three passes of the unsharded layer.
struct Reference {
  Truth y, dx, dw;

  /// Replaces the passes in NVFP4 by those with operands that are rounded as unsharded matrices.
  void set_nvfp4(const Case& c, const Data& data, const std::string& weight) {
    CpuDevice device;
    const auto amax = [&](const Numbers& x) {
      return test::tensor_of({test::largest_magnitude(x)}, {1}, DType::F32, device);
    };
    LinearScales scales{.passes = c.recipe,
                        .current = {.input = amax(data.x), .weight = amax(data.w), .gradient = amax(data.dy)}};
    scales.seed = kSeed, scales.samples = kSamples;
    const OutputColumns columns{weight, {{0, 0, c.out}}};
    if (c.recipe.forward == GemmRecipe::Nvfp4) {
      const auto forward = std::get<Nvfp4Operands>(*scales.forward());
      y = product(in_nvfp4(data.x, c.in, forward.a, {}), c.in, 1, in_nvfp4(data.w, c.in, forward.b, {}), c.in, 1, kRows,
                  c.out, c.in);
    }
    if (c.recipe.dgrad == GemmRecipe::Nvfp4) {
      const auto dgrad = std::get<Nvfp4Operands>(*scales.dgrad(columns));
      dx = product(in_nvfp4(data.dy, c.out, dgrad.a, {}), c.out, 1, in_nvfp4(data.w, c.in, dgrad.b, {}), 1, c.in, kRows,
                   c.in, c.out);
    }
    if (c.recipe.wgrad == GemmRecipe::Nvfp4) {
      const auto wgrad = std::get<Nvfp4Operands>(*scales.wgrad(columns));
      ASSERT_TRUE(wgrad.hadamard_signs);
      dw = product(in_nvfp4(data.dy, c.out, wgrad.a, wgrad.hadamard_signs), 1, c.out,
                   in_nvfp4(data.x, c.in, wgrad.b, wgrad.hadamard_signs), 1, c.in, c.out, c.in, kRows);
    }
  }

  Reference(const Case& c, const Data& data) {
    const auto [forward, dgrad, wgrad, gradients] = c.recipe;
    constexpr auto kRowwise = Contraction::Columns, kColumnwise = Contraction::Rows;
    constexpr Fp8Format kE4m3 = Fp8Format::E4M3;
    y = product(rounded(data.x, c.in, forward, kE4m3, activation_blocks(forward, kRowwise)), c.in, 1,
                rounded(data.w, c.in, forward, kE4m3, weight_blocks(forward, kRowwise)), c.in, 1, kRows, c.out, c.in);
    dx = product(rounded(data.dy, c.out, dgrad, gradients, activation_blocks(dgrad, kRowwise)), c.out, 1,
                 rounded(data.w, c.in, dgrad, kE4m3, weight_blocks(dgrad, kColumnwise)), 1, c.in, kRows, c.in, c.out);
    dw = product(rounded(data.dy, c.out, wgrad, gradients, activation_blocks(wgrad, kColumnwise)), 1, c.out,
                 rounded(data.x, c.in, wgrad, kE4m3, activation_blocks(wgrad, kColumnwise)), 1, c.in, c.out, c.in,
                 kRows);
  }
};

/// Runs one microbatch through this rank's shard of the layer, and compares it with the results of the unsharded layer.
/// `saved_magnitudes` states that forward saves the current largest magnitudes.
void expect_pass(const Case& c, const Data& data, const Reference& reference, bool saved_magnitudes, Module& layer,
                 Communicator& tp, CpuDevice& device) {
  const auto& [y, dx, dw] = reference;
  const int outside = c.sequence_parallel ? 0 : -1;
  const Box x_box = part_box(c.in, c.is_row_parallel ? 2 : outside, tp),
            y_box = part_box(c.out, c.is_row_parallel ? outside : 2, tp);
  Param* weight = nullptr;
  layer.visit([&](Param& param) {
    weight = &param;
    param.value = test::tensor_of(test::part_of(data.w, param.box), param.box.shape, DType::BF16, device);
    param.main_grad = test::garbage(param.box.shape, DType::F32, device);
    param.clear_grad();
  });
  const auto part = [&](const Numbers& all, const Box& box) {
    return test::tensor_of(test::part_of(all, box), box.shape, DType::BF16, device);
  };
  MicrobatchContext context;
  context.delay_wgrad_compute = c.delay_wgrad_compute;
  context.samples = kSamples;
  // bf16 rounds the result, and before it the parts of a sum over ranks. Gradients of weights are in fp32.
  constexpr double kOnce = 0x1p-8, kTwice = 2 * kOnce;
  expect_part(layer.forward(part(data.x, x_box), context), y, y_box, c.is_row_parallel ? kTwice : kOnce, "y");
  EXPECT_EQ(context.saved_tensors.bytes(), (numel(x_box.shape) * 2) + (saved_magnitudes ? 8 : 0))
      << "the input, and scales of tensors";
  expect_part(layer.backward(part(data.dy, y_box), context), dx, x_box, c.is_row_parallel ? kOnce : kTwice, "dx");
  context.run_delayed_wgrads();
  EXPECT_TRUE(context.saved_tensors.empty());
  expect_part(weight->main_grad, dw, weight->box, 1e-6, "dw");
}

void expect_reference(const Case& c, int ranks) {
  const Data data(c);
  Reference reference(c, data);
  reference.set_nvfp4(c, data, c.is_row_parallel ? "row.weight" : "column.weight");
  run_local_ranks(ranks, [&](Communicator& tp, int) {
    CpuDevice device;
    const auto layer = make_layer(c, tp);
    expect_pass(c, data, reference, c.recipe.needs_amax(), *layer, tp, device);
  });
}

constexpr GemmRecipe kBf16 = GemmRecipe::Bf16, kTensorwise = GemmRecipe::Tensorwise, kBlockwise = GemmRecipe::Blockwise,
                     kMxfp8 = GemmRecipe::Mxfp8, kNvfp4 = GemmRecipe::Nvfp4;
const PassRecipes kRecipes[]{PassRecipes::of(kTensorwise),
                             PassRecipes::of(kTensorwise, Fp8Format::E5M2),
                             PassRecipes::of(kBlockwise),
                             PassRecipes::of(kMxfp8),
                             PassRecipes::of(kMxfp8, Fp8Format::E5M2),
                             {kMxfp8, kBlockwise, kBf16, Fp8Format::E5M2},
                             {kBf16, kMxfp8, kTensorwise, Fp8Format::E4M3},
                             {kTensorwise, kBf16, kMxfp8, Fp8Format::E4M3},
                             PassRecipes::of(kNvfp4),
                             {kNvfp4, kMxfp8, kNvfp4, Fp8Format::E5M2}};

class Fp8LinearTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Fp8LinearTest, testing::Values(1, 2, 4));

TEST_P(Fp8LinearTest, MatchesReferenceRoundedAsUnshardedTensors) {
  for (const bool is_row_parallel : {false, true})
    for (const bool sequence_parallel : {false, true})
      for (const bool defers : {false, true})
        for (const PassRecipes& recipe : kRecipes) {
          SCOPED_TRACE(str(is_row_parallel ? "row" : "column", sequence_parallel ? " sequence" : "",
                           defers ? " deferred" : "", " ", enum_name(recipe.forward), " ", enum_name(recipe.dgrad), " ",
                           enum_name(recipe.wgrad), " ", enum_name(recipe.gradients)));
          Case c{is_row_parallel, sequence_parallel, defers, recipe};
          // Blocks lie within the shard of a rank.
          i64& sharded = is_row_parallel ? c.in : c.out;
          if (recipe.uses(GemmRecipe::Mxfp8) || recipe.uses(GemmRecipe::Nvfp4)) sharded = 32 * GetParam();
          if (recipe.uses(GemmRecipe::Blockwise)) sharded = 128 * GetParam();
          expect_reference(c, GetParam());
          if (HasFailure()) return;
        }
}

/// Returns the results of the unsharded layer whose operands have the scales of `past`, beyond which they saturate.
Reference delayed_reference(const Case& c, const Data& past, const Data& data) {
  const auto round = [](const Numbers& x, Fp8Format format, const Numbers& scaled_as) {
    return test::in_fp8(x, format, test::largest_magnitude(scaled_as));
  };
  Data operands = data;
  operands.x = round(data.x, Fp8Format::E4M3, past.x);
  operands.w = round(data.w, Fp8Format::E4M3, past.w);
  operands.dy = round(data.dy, c.recipe.gradients, past.dy);
  Case exact = c;
  exact.recipe = PassRecipes::of(kBf16);
  return {exact, operands};
}

TEST_P(Fp8LinearTest, DelayedScalesFollowFromPastSteps) {
  for (const bool is_row_parallel : {false, true})
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(str(is_row_parallel ? "row" : "column", sequence_parallel ? " sequence" : ""));
      const Case c{is_row_parallel, sequence_parallel, false, PassRecipes::of(GemmRecipe::Delayed, Fp8Format::E5M2)};
      const Data first(c);
      Data second = first, third = first;
      for (double& x : second.x) x *= 8;
      for (double& dy : second.dy) dy *= 0x1p-6;
      Data largest = second;  // of a history of two steps
      largest.dy = first.dy;
      run_local_ranks(GetParam(), [&](Communicator& tp, int) {
        CpuDevice device;
        AmaxHistories histories({.amax_history_len = 2});
        const auto layer = make_layer(c, tp, &histories.add("layer"));
        histories.add("another layer");
        histories.allocate(device);
        const auto step = [&](const Data& data, const Data& scaled_as, bool is_first) {
          histories.begin_step();
          expect_pass(c, data, delayed_reference(c, scaled_as, data), is_first, *layer, tp, device);
          Communicator* const ranks[]{&tp};
          histories.end_step(ranks);
          histories.update_scales();
        };
        step(first, first, true);
        step(second, first, false);
        step(third, largest, false);
        step(third, largest, false);
        step(second, third, false);
      });
      if (HasFailure()) return;
    }
}

/// The gradient was zero so far, so that it has no scale, unlike the input and the weight.
TEST_P(Fp8LinearTest, UsesCurrentScaleWhenGradientHistoryIsZero) {
  const Case c{false, false, false, PassRecipes::of(GemmRecipe::Delayed, Fp8Format::E5M2)};
  const Data data(c);
  Data first = data;
  std::ranges::fill(first.dy, 0);
  run_local_ranks(GetParam(), [&](Communicator& tp, int) {
    CpuDevice device;
    AmaxHistories histories({.amax_history_len = 2});
    const auto layer = make_layer(c, tp, &histories.add("layer"));
    histories.allocate(device);
    for (const bool is_first : {true, false}) {
      const Data& step = is_first ? first : data;
      histories.begin_step();
      expect_pass(c, step, delayed_reference(c, step, step), is_first, *layer, tp, device);
      Communicator* const ranks[]{&tp};
      histories.end_step(ranks);
      histories.update_scales();
    }
  });
}

/// One pass has the scales of past steps, and another those of the current tensors.
TEST_P(Fp8LinearTest, CombinesDelayedAndCurrentScales) {
  Case c{true, true, false, {GemmRecipe::Delayed, kTensorwise, kBf16, Fp8Format::E4M3}};
  const Data first(c);
  Data second = first;
  for (double& x : second.x) x *= 8;
  Reference reference = delayed_reference(c, first, second);  // forward
  Case current = c;
  current.recipe.forward = kTensorwise;
  const Reference other(current, second);
  reference.dx = other.dx, reference.dw = other.dw;
  run_local_ranks(GetParam(), [&](Communicator& tp, int) {
    CpuDevice device;
    AmaxHistories histories({.amax_history_len = 2});
    const auto layer = make_layer(c, tp, &histories.add("layer"));
    histories.allocate(device);
    histories.begin_step();
    expect_pass(c, first, Reference(current, first), true, *layer, tp, device);
    Communicator* const ranks[]{&tp};
    histories.end_step(ranks);
    histories.update_scales();
    histories.begin_step();
    expect_pass(c, second, reference, true, *layer, tp, device);
  });
}

/// Columns of a shard keep their places in the unsharded layer, wherever its weight is sharded.
TEST(OutputColumnsTest, AreRowsOfGlobalWeight) {
  const Box boxes[]{{{6, 4}, {0, 0}, {6, 4}},          {{6, 4}, {3, 0}, {3, 4}},
                    {{2, 8, 4}, {0, 2, 0}, {2, 2, 4}}, {{4, 6, 5}, {2, 0, 0}, {2, 6, 5}},
                    {{4, 6, 5}, {1, 2, 0}, {1, 4, 5}}, {{3, 4, 6, 2}, {1, 0, 3, 0}, {2, 4, 2, 2}},
                    {{6, 4}, {0, 2}, {6, 2}}};
  for (const Box& box : boxes) {
    const OutputColumns columns = output_columns("w", box);
    Box rows = box;  // without the last axis
    rows.global.pop_back(), rows.offset.pop_back(), rows.shape.pop_back();
    i64 row = 0;
    for (const ColumnRun& run : columns.runs) {
      EXPECT_EQ(run.first, row);
      for (i64 i = 0; i < run.count; ++i) EXPECT_EQ(run.global + i, test::global_index(rows, row++));
    }
    EXPECT_EQ(row, numel(rows.shape));
  }
}

TEST(LinearWithoutFp8Test, ComputesInModelType) {
  const Case c{false, false, false, PassRecipes::of(kBf16)};
  const Data data(c);
  CpuDevice device;
  const auto self = make_self_communicator();
  ColumnParallelLinear layer("column", c.in, {c.out}, 0, *self, {.bias = false});
  layer.visit([&](Param& param) { param.value = test::tensor_of(data.w, param.box.shape, DType::BF16, device); });
  const Tensor x = test::tensor_of(data.x, {kSeq, kBatch, c.in}, DType::BF16, device);
  MicrobatchContext context;
  const Truth y = product(data.x, c.in, 1, data.w, c.in, 1, kRows, c.out, c.in);
  expect_part(layer.forward(x, context), y, slab({kSeq, kBatch, c.out}, 0, 0, kSeq), 0x1p-8, "y");
  EXPECT_EQ(context.saved_tensors.bytes(), x.bytes());
}

}  // namespace
}  // namespace mcpp::tp_fp8_test
