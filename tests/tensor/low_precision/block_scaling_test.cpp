// Rounding of matrices to fp8 blocks, compared with torchao and PyTorch (make_block_golden.py), and with a table of fp8
// values for blocks of any shape.
#include <cstring>
#include <limits>

#include "tensor/ops/low_precision/recipe.h"
#include "tensor/ops/low_precision/recipe_support.h"
#include "tests/support/boxes.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/fp8.h"
#include "tests/support/matrix_ops.h"
#include "tests/support/readers/hdf5_file.h"

namespace mcpp::test::block_scaling_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class BlockScalingTest : public MatrixOps {
 protected:
  Numbers rounded(const Tensor& x, Fp8Format format, BlockShape block) {
    Tensor y = empty_matrix(x.shape());
    ops::round_to_fp8(x, {.format = format, .block = block}, y);
    return to_doubles(y);
  }
  /// Returns true for blocks of recipes, and on CPUs for all others.
  bool supports(const BlockShape& block) const {
    const auto is_vector = [](i64 size, i64 other) { return other == 1 && (size == 32 || size == 128); };
    return !is_on_gpu() || block == BlockShape{128, 128} || is_vector(block.rows, block.columns) ||
           is_vector(block.columns, block.rows);
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, BlockScalingTest, testing::ValuesIn(all_targets()), target_name);

Numbers values_of(const std::vector<i64>& bits) {
  Numbers values;
  for (const i64 word : bits) values.push_back(std::bit_cast<float>(static_cast<u32>(word) << 16));
  return values;
}

TEST_P(BlockScalingTest, MatchesTorchaoAndPyTorch) {
  const Hdf5File golden(golden_folder() / "low_precision/blocks.h5");
  const Hdf5Array<i64> input = golden.read<i64>("x");
  const Tensor x = matrix(values_of(input.values), input.shape.at(1));
  const std::pair<const char*, BlockShape> recipes[]{
      {"mxfp8", activation_blocks(GemmRecipe::Mxfp8, Contraction::Columns)},
      {"blockwise", activation_blocks(GemmRecipe::Blockwise, Contraction::Columns)},
      {"blockwise_weight", weight_blocks(GemmRecipe::Blockwise, Contraction::Columns)}};
  for (const auto& [name, block] : recipes) {
    for (const Fp8Format format : {Fp8Format::E4M3, Fp8Format::E5M2}) {
      const std::string set = str(name, "_", enum_name(format));
      const Numbers expected = values_of(golden.read<i64>(set).values), found = rounded(x, format, block);
      ASSERT_EQ(found.size(), expected.size());
      i64 finite = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << set << "[" << i << "]";
        if (std::isnan(found[i])) continue;
        ASSERT_EQ(found[i], expected[i]) << set << "[" << i << "]";
        ASSERT_EQ(std::signbit(found[i]), std::signbit(expected[i])) << set << "[" << i << "]";
        ++finite;
      }
      EXPECT_GT(finite, 15000) << set;
    }
  }
}

/// The last blocks of a matrix may be smaller, and a row may end within a vector.
TEST_P(BlockScalingTest, RoundsBlocksOfAnyShape) {
  for (const auto& [rows, columns] : {std::pair<i64, i64>{1, 1}, {3, 130}, {129, 65}, {40, 257}, {256, 48}}) {
    Numbers x = normals(rows * columns, 1, DType::BF16);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0, static_cast<int>(i * 7 % 31) - 15);
    for (const BlockShape& block : {BlockShape{1, 128}, {128, 1}, {128, 128}, {1, 32}, {32, 1}, {16, 16}, {5, 3}})
      for (const Fp8Format format : {Fp8Format::E4M3, Fp8Format::E5M2}) {
        if (!supports(block)) continue;
        ASSERT_EQ(rounded(matrix(x, columns), format, block), in_fp8_blocks(x, columns, format, block))
            << rows << " x " << columns << ", block " << block.rows << " x " << block.columns;
      }
  }
}

/// Only the block of a non-finite value becomes NaN, and all of it does.
TEST_P(BlockScalingTest, NonFiniteValueTurnsItsBlockIntoNan) {
  constexpr i64 kRows = 64, kColumns = 64, kRow = 33, kColumn = 5;
  for (const double none : {std::nan(""), double{kInfinity}, -double{kInfinity}}) {
    Numbers x = normals(kRows * kColumns, 2, DType::BF16);
    x[kRow * kColumns + kColumn] = none;
    for (const BlockShape& block : {BlockShape{1, 32}, {32, 1}, {16, 16}}) {
      if (!supports(block)) continue;
      const Numbers y = rounded(matrix(x, kColumns), Fp8Format::E4M3, block);
      for (i64 i = 0; i < kRows; ++i)
        for (i64 j = 0; j < kColumns; ++j)
          ASSERT_EQ(std::isnan(y[static_cast<std::size_t>(i * kColumns + j)]),
                    i / block.rows == kRow / block.rows && j / block.columns == kColumn / block.columns)
              << i << ", " << j;
    }
  }
}

/// Blocks lie within shards, so that ranks encode their shards as one rank encodes the full matrix.
TEST_P(BlockScalingTest, ShardsAreRoundedAsPartsOfMatrix) {
  constexpr i64 kRows = 256, kColumns = 256;
  const Numbers x = normals(kRows * kColumns, 3, DType::BF16, 1e-3);
  for (const GemmRecipe recipe : {GemmRecipe::Blockwise, GemmRecipe::Mxfp8}) {
    for (const Contraction axis : {Contraction::Rows, Contraction::Columns}) {
      for (const BlockShape& block : {activation_blocks(recipe, axis), weight_blocks(recipe, axis)}) {
        const Numbers full = rounded(matrix(x, kColumns), Fp8Format::E4M3, block);
        for (const i64 ranks : {i64{2}, kRows / block_size(recipe)}) {
          for (const std::size_t cut : {0U, 1U}) {
            for (i64 rank = 0; rank < ranks; ++rank) {
              const Box box = slab({kRows, kColumns}, cut, kRows / ranks * rank, kRows / ranks);
              ASSERT_EQ(rounded(matrix(part_of(x, box), box.shape[1]), Fp8Format::E4M3, block), part_of(full, box))
                  << enum_name(recipe) << ", rank " << rank << " of " << ranks << ", axis " << cut;
            }
          }
        }
      }
    }
  }
}

/// Blocks of the operands of a pass.
struct PassBlocks {
  ops::MatmulOptions options;
  BlockShape a, b;
};
std::vector<PassBlocks> passes_of(GemmRecipe recipe) {
  const auto rows = activation_blocks(recipe, Contraction::Rows),
             columns = activation_blocks(recipe, Contraction::Columns);
  return {{kForwardPass, columns, weight_blocks(recipe, Contraction::Columns)},
          {kDgradPass, columns, weight_blocks(recipe, Contraction::Rows)},
          {kWgradPass, rows, rows}};
}

/// Sizes are those that GPUs support, with partial tiles and blocks, and others, which they emulate.
TEST_P(BlockScalingTest, GemmsMatchGemmsOfRoundedOperands) {
  constexpr std::array<i64, 3> kSizes[]{{32, 64, 160}, {96, 272, 288}, {48, 40, 161}};
  for (const GemmRecipe recipe : {GemmRecipe::Blockwise, GemmRecipe::Mxfp8}) {
    for (const auto& [m, n, k] : kSizes) {
      for (const auto& [options, a_block, b_block] : passes_of(recipe)) {
        for (const Fp8Format format : {Fp8Format::E4M3, Fp8Format::E5M2}) {
          for (const DType out : {DType::F32, DType::BF16}) {
            SCOPED_TRACE(str(enum_name(recipe), " ", m, " ", n, " ", k, " ", name_of(out)));
            Numbers a = normals(m * k, 4, DType::BF16), b = normals(n * k, 5, DType::BF16, 30);
            for (std::size_t i = 0; i < a.size(); ++i) a[i] *= std::ldexp(1.0, static_cast<int>(i / 16 * 7 % 19) - 14);
            const i64 a_width = options.transpose_a ? m : k, b_width = options.transpose_b ? k : n;
            const Numbers before = normals(m * n, 6, out);
            Tensor c = options.beta == 0 ? empty_matrix({m, n}, out) : matrix(before, n, out);
            ops::fp8_matmul(matrix(a, a_width), {.format = format, .block = a_block}, matrix(b, b_width),
                            {.block = b_block}, c, options);
            expect_product({m, n, k, options, out}, in_fp8_blocks(a, a_width, format, a_block),
                           in_fp8_blocks(b, b_width, Fp8Format::E4M3, b_block), 1, before, c);
            if (HasFailure()) return;
          }
        }
      }
    }
    const bool multiplies_codes = ops::recipe_emulation_reason(device(), recipe).empty();
    EXPECT_EQ(gemm_choices(device()).find(str("\n", enum_name(recipe))) != std::string::npos, multiplies_codes)
        << enum_name(recipe);
  }
}

TEST_P(BlockScalingTest, GemmMultipliesBlocksOfDifferentRecipes) {
  constexpr i64 kM = 48, kN = 40, kK = 160;
  const Numbers a = normals(kM * kK, 4, DType::BF16), b = normals(kN * kK, 5, DType::BF16);
  const BlockShape block{1, 32}, square{128, 128};
  Tensor c = empty_matrix({kM, kN}, DType::F32);
  ops::fp8_matmul(matrix(a, kK), {.format = Fp8Format::E5M2, .block = block}, matrix(b, kK), {.block = square}, c,
                  kForwardPass);
  expect_product({kM, kN, kK, kForwardPass, DType::F32}, in_fp8_blocks(a, kK, Fp8Format::E5M2, block),
                 in_fp8_blocks(b, kK, Fp8Format::E4M3, square), 1, {}, c);
}

TEST_P(BlockScalingTest, GemmWithoutProductsKeepsOrClearsOutput) {
  for (const float beta : {0.0F, 1.0F}) {
    Tensor c = matrix({1, 2, 3, 4}, 2, DType::F32);
    const Tensor none = empty_matrix({2, 0});
    ops::fp8_matmul(none, {.block = {1, 32}}, none, {.block = {1, 32}}, c, {.transpose_b = true, .beta = beta});
    EXPECT_EQ(to_doubles(c), beta == 0 ? Numbers(4, 0) : (Numbers{1, 2, 3, 4}));
  }
}

TEST_P(BlockScalingTest, RejectsInvalidScales) {
  const Tensor x = matrix(normals(256, 6, DType::BF16), 16);
  Tensor y = empty_matrix({16, 16});
  const Tensor amax = amax_of(1);
  EXPECT_NE(error_of([&] { ops::round_to_fp8(x, {.amax = amax, .block = {1, 16}}, y); }), "") << "two kinds of scales";
  EXPECT_NE(error_of([&] { ops::round_to_fp8(x.view({256}), {.block = {1, 16}}, y); }), "") << "no matrix";
  EXPECT_NE(error_of([&] { ops::round_to_fp8(x, {.block = {1, 0}}, y); }), "") << "no columns";
  if (!is_on_gpu()) return;
  EXPECT_NE(error_of([&] { ops::round_to_fp8(x, {.block = {5, 3}}, y); }), "") << "of no recipe";
  EXPECT_NE(error_of([&] {
              ops::fp8_matmul(x, {.block = {32, 1}}, x, {.block = {1, 32}}, y, kForwardPass);
            }),
            "")
      << "blocks across the contraction";
}

}  // namespace
}  // namespace mcpp::test::block_scaling_test
