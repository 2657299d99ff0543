// Rounding to NVFP4, compared with torchao (make_block_golden.py) and with a table of E2M1 values; stochastic rounding,
// the Hadamard transform and GEMMs.
#include "tensor/ops/low_precision/nvfp4.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/low_precision/recipe_support.h"
#include "tests/support/boxes.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/fp8.h"
#include "tests/support/matrix_ops.h"
#include "tests/support/readers/hdf5_file.h"

namespace mcpp::test::nvfp4_test {
namespace {

constexpr std::array<double, 8> kE2m1Values{0, 0.5, 1, 1.5, 2, 3, 4, 6};

class Nvfp4Test : public MatrixOps {
 protected:
  /// Returns the values without the scale of the matrix.
  Numbers rounded(const Numbers& x, i64 columns, const Nvfp4Scale& scale) {
    const Tensor from = matrix(x, columns);
    Tensor y = empty_matrix(from.shape());
    ops::round_to_nvfp4(from, scale, y);
    return to_doubles(y);
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, Nvfp4Test, testing::ValuesIn(all_targets()), target_name);

Numbers values_of_bits(const std::vector<i64>& bits) {
  Numbers values;
  for (const i64 word : bits) values.push_back(std::bit_cast<float>(static_cast<u32>(word) << 16));
  return values;
}

/// Returns the index of the largest value that is at most x.
std::size_t e2m1_below(double x) {
  return static_cast<std::size_t>(std::ranges::upper_bound(kE2m1Values, x) - kE2m1Values.begin()) - 1;
}

double nearest_e2m1(double x) {
  const std::size_t low = e2m1_below(x);
  if (low + 1 == kE2m1Values.size()) return kE2m1Values.back();
  const double down = x - kE2m1Values[low], up = kE2m1Values[low + 1] - x;
  return up < down || (up == down && low % 2 == 1) ? kE2m1Values[low + 1] : kE2m1Values[low];
}

/// Scale of a block, and the factor of its elements, in torchao's order of fp32 operations.
struct BlockFactors {
  float scale, factor;

  BlockFactors(float largest, float matrix_scale) {
    const float exact = std::clamp(largest / 6.0F / matrix_scale, 0x1p-6F, 448.0F);
    scale = static_cast<float>(nearest_fp8(Fp8Format::E4M3, exact));
    factor = 1.0F / matrix_scale / scale;
  }
};

/// Calls f(places, largest magnitude) for the elements of each block.
template <class F>
void for_each_block(const Numbers& x, i64 columns, const BlockShape& block, F&& f) {
  const i64 rows = static_cast<i64>(x.size()) / columns;
  for (i64 row = 0; row < rows; row += block.rows) {
    for (i64 column = 0; column < columns; column += block.columns) {
      std::vector<std::size_t> places;
      double largest = 0;
      for (i64 i = row; i < std::min(rows, row + block.rows); ++i)
        for (i64 j = column; j < std::min(columns, column + block.columns); ++j)
          places.push_back(static_cast<std::size_t>(i * columns + j)),
              largest = std::max(largest, std::abs(x[places.back()]));
      f(places, largest);
    }
  }
}

Numbers expected(const Numbers& x, i64 columns, const BlockShape& block, float matrix_scale) {
  Numbers y(x.size());
  for_each_block(x, columns, block, [&](const std::vector<std::size_t>& places, double largest) {
    const BlockFactors factors(static_cast<float>(largest), matrix_scale);
    for (const std::size_t i : places) {
      const float scaled = std::min(static_cast<float>(std::abs(x[i])) * factors.factor, 6.0F);
      y[i] = std::copysign(nearest_e2m1(scaled) * factors.scale, x[i]);
    }
  });
  return y;
}

/// Returns values whose blocks of 16 have different magnitudes.
Numbers uneven_blocks(i64 count, u64 seed) {
  Numbers x = normals(count, seed, DType::BF16);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0, static_cast<int>(i / 16 * 7 % 19) - 14);
  return x;
}

TEST_P(Nvfp4Test, MatchesTorchao) {
  const Hdf5File golden(golden_folder() / "low_precision/blocks.h5");
  const Hdf5Array<i64> input = golden.read<i64>("nvfp4_x");
  const Numbers x = values_of_bits(input.values), y = values_of_bits(golden.read<i64>("nvfp4").values);
  const auto amax = static_cast<float>(largest_magnitude(x));
  EXPECT_EQ(nvfp4_matrix_scale(amax, 1), golden.read<float>("nvfp4_scale").values.at(0));
  const Numbers found = rounded(x, input.shape.at(1), {.amax = amax_of(amax)});
  ASSERT_EQ(found.size(), y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(found[i], y[i]) << i;
    ASSERT_EQ(std::signbit(found[i]), std::signbit(y[i])) << i;
  }
}

TEST_P(Nvfp4Test, RoundsBlocksOfAllShapes) {
  for (const auto& [rows, columns] : {std::pair<i64, i64>{16, 16}, {3, 40}, {50, 300}, {33, 17}, {128, 520}}) {
    const Numbers x = uneven_blocks(rows * columns, 1);
    const double amax = 2 * largest_magnitude(x);  // on another rank
    for (const BlockShape& block : {BlockShape{1, 16}, {16, 1}, {16, 16}})
      for (const float headroom : {1.0F, 4.0F})
        ASSERT_EQ(rounded(x, columns, {.amax = amax_of(amax), .headroom = headroom, .block = block}),
                  expected(x, columns, block, nvfp4_matrix_scale(static_cast<float>(amax), headroom)))
            << rows << " x " << columns << ", block " << block.rows << " x " << block.columns;
  }
}

TEST_P(Nvfp4Test, NonFiniteMatrixBecomesNan) {
  const Numbers x = normals(64, 2, DType::BF16);
  for (const double none : {std::nan(""), double{std::numeric_limits<float>::infinity()}}) {
    for (const double y : rounded(x, 16, {.amax = amax_of(none)})) ASSERT_TRUE(std::isnan(y));
    Tensor c = empty_matrix({4, 4}, DType::F32);
    ops::nvfp4_matmul(matrix(x, 16), {.amax = amax_of(none)}, matrix(x, 16), {.amax = amax_of(1)}, c,
                      {.transpose_b = true});
    for (const double y : to_doubles(c)) ASSERT_TRUE(std::isnan(y));
  }
}

TEST_P(Nvfp4Test, KeepsZeroMatrices) {
  for (const double y : rounded(Numbers(64, 0), 16, {.amax = amax_of(0)})) EXPECT_EQ(y, 0);
}

StochasticRounding random_of(u64 key, std::vector<ColumnRun> columns, i64 first_position = 0) {
  return {.key = key, .samples = {7, 3}, .positions = {.first = first_position}, .columns = std::move(columns)};
}

/// Values are one of the two neighbors, and their mean over many draws is the value itself.
TEST_P(Nvfp4Test, StochasticRoundingIsUnbiased) {
  if (is_on_gpu()) return;  // it draws the words of CPUs, as the next test verifies
  constexpr i64 kRows = 16, kColumns = 48, kDraws = 2000;
  const Numbers x = uneven_blocks(kRows * kColumns, 3);
  const double amax = largest_magnitude(x);
  const float matrix_scale = nvfp4_matrix_scale(static_cast<float>(amax), 1);
  for (const BlockShape& block : {BlockShape{1, 16}, {16, 1}}) {
    Numbers sum(x.size(), 0);
    std::vector<Numbers> draws;
    for (u64 key = 0; key < kDraws; ++key) {
      draws.push_back(rounded(
          x, kColumns, {.amax = amax_of(amax), .block = block, .stochastic = random_of(key, {{0, 0, kColumns}})}));
      for (std::size_t i = 0; i < x.size(); ++i) sum[i] += draws.back()[i];
    }
    double squares = 0;
    for_each_block(x, kColumns, block, [&](const std::vector<std::size_t>& places, double largest) {
      const BlockFactors factors(static_cast<float>(largest), matrix_scale);
      for (const std::size_t i : places) {
        const double scaled = std::min(std::abs(x[i]) * factors.factor, 6.0);
        const std::size_t low = e2m1_below(scaled);
        const double below = kE2m1Values[low], above = kE2m1Values[std::min<std::size_t>(low + 1, 7)];
        for (const Numbers& y : draws) {
          const double element = std::abs(y[i]) / factors.scale;
          ASSERT_TRUE(element == below || element == above) << element << " for " << scaled;
        }
        const double p = above > below ? (scaled - below) / (above - below) : 0,
                     deviation = (above - below) * std::sqrt(p * (1 - p) / kDraws),
                     error = std::abs(sum[i]) / kDraws / factors.scale - scaled;
        EXPECT_LE(std::abs(error), 5 * deviation + 1e-6);
        if (deviation > 0) squares += error * error / (deviation * deviation) / static_cast<double>(x.size());
      }
    });
    EXPECT_NEAR(squares, 1, 0.25) << "errors are as large as those of independent draws";
  }
}

/// A value is rounded up if the word of its sample, position and column is below its distance from the lower value.
TEST_P(Nvfp4Test, StochasticRoundingUsesKeyedWords) {
  constexpr i64 kRows = 52, kColumns = 150;
  constexpr u64 kKey = 9;
  const Numbers x = uneven_blocks(kRows * kColumns, 12);
  const double amax = largest_magnitude(x);
  const float matrix_scale = nvfp4_matrix_scale(static_cast<float>(amax), 1);
  const std::vector<ColumnRun> runs{{0, 30, 70}, {70, 500, 80}};
  const StochasticRounding random = random_of(kKey, runs, 6);
  const auto word_at = [&](std::size_t i) {
    const i64 row = static_cast<i64>(i) / kColumns, column = static_cast<i64>(i) % kColumns;
    const i64 global = column < 70 ? 30 + column : 500 + column - 70;
    return philox4x32(kKey, dropout_counter(random.samples[static_cast<std::size_t>(row % 2)], 6 + row / 2,
                                            global / 4))[static_cast<std::size_t>(global % 4)];
  };
  for (const BlockShape& block : {BlockShape{1, 16}, {16, 1}}) {
    const Numbers found =
        rounded(x, kColumns, {.amax = amax_of(amax), .block = block, .stochastic = random_of(kKey, runs, 6)});
    for_each_block(x, kColumns, block, [&](const std::vector<std::size_t>& places, double largest) {
      const BlockFactors factors(static_cast<float>(largest), matrix_scale);
      for (const std::size_t i : places) {
        const double scaled = std::min(static_cast<float>(std::abs(x[i])) * factors.factor, 6.0F);
        const std::size_t low = e2m1_below(scaled), high = std::min<std::size_t>(low + 1, 7);
        const double gap = kE2m1Values[high] - kE2m1Values[low], draw = (word_at(i) >> 8) * 0x1p-24;
        const bool goes_up = gap > 0 && draw < (scaled - kE2m1Values[low]) / gap;
        EXPECT_EQ(found[i], std::copysign(kE2m1Values[goes_up ? high : low] * factors.scale, x[i])) << i;
      }
    });
  }
}

/// Random numbers belong to samples, positions and columns, not to ranks.
TEST_P(Nvfp4Test, StochasticRoundingDoesNotDependOnSharding) {
  constexpr i64 kRows = 64, kColumns = 600, kHalf = kColumns / 2;  // two samples at 32 positions
  const Numbers x = uneven_blocks(kRows * kColumns, 4);
  const double amax = largest_magnitude(x);
  const auto rounded_part = [&](const Box& box, i64 first_position, std::vector<ColumnRun> columns) {
    return rounded(
        part_of(x, box), box.shape[1],
        {.amax = amax_of(amax), .block = {16, 1}, .stochastic = random_of(5, std::move(columns), first_position)});
  };
  const Box whole = slab({kRows, kColumns}, 0, 0, kRows);
  const Numbers full = rounded_part(whole, 0, {{0, 0, kColumns}});
  for (const i64 first : {0, 16, 32, 48}) {
    const Box rows = slab({kRows, kColumns}, 0, first, 16);
    EXPECT_EQ(rounded_part(rows, first / 2, {{0, 0, kColumns}}), part_of(full, rows)) << first;
  }
  const Box right = slab({kRows, kColumns}, 1, kHalf, kHalf);
  EXPECT_EQ(rounded_part(right, 0, {{0, kHalf, kHalf}}), part_of(full, right));
  EXPECT_NE(rounded_part(right, 0, {{0, 0, kHalf}}), part_of(full, right)) << "other columns have other numbers";
  // A shard of a gated projection has columns of two places.
  Numbers two_parts, expected_parts;
  for (i64 row = 0; row < kRows; ++row)
    for (const i64 column : {100, 400})
      for (i64 i = 0; i < 50; ++i) {
        const auto at = static_cast<std::size_t>(row * kColumns + column + i);
        two_parts.push_back(x[at]), expected_parts.push_back(full[at]);
      }
  EXPECT_EQ(
      rounded(two_parts, 100,
              {.amax = amax_of(amax), .block = {16, 1}, .stochastic = random_of(5, {{0, 100, 50}, {50, 400, 50}})}),
      expected_parts);
}

TEST_P(Nvfp4Test, HadamardTransformMatchesMatrix) {
  constexpr i64 kRows = 37, kColumns = 21;
  constexpr u32 kSigns = 0xB3A5;
  const Numbers x = normals(kRows * kColumns, 6, DType::BF16);
  Tensor y = empty_matrix({kRows, kColumns});
  ops::random_hadamard(matrix(x, kColumns), kSigns, y);
  const Numbers found = to_doubles(y);
  for (i64 row = 0; row < kRows; ++row) {
    const i64 band = row / 16 * 16;
    for (i64 column = 0; column < kColumns; ++column) {
      const auto at = [&](i64 r) { return x[static_cast<std::size_t>(r * kColumns + column)]; };
      double sum = band + 16 > kRows ? at(row) : 0;
      for (i64 i = 0; band + 16 <= kRows && i < 16; ++i) {
        const bool is_negative = std::popcount(static_cast<u32>(i & (row - band))) % 2 == 1;  // Sylvester's matrix
        sum += at(band + i) * (is_negative ? -0.25 : 0.25) * (kSigns >> i & 1 ? -1 : 1);
      }
      ASSERT_NEAR(found[static_cast<std::size_t>(row * kColumns + column)], sum, 0x1p-8 * std::abs(sum) + 1e-6);
    }
  }
}

/// A GEMM multiplies the rounded operands and both scales, and adds to the output if beta is 1. Sizes are those that
/// GPUs support, with partial tiles, and others, which they emulate.
TEST_P(Nvfp4Test, GemmMultipliesRoundedOperands) {
  constexpr std::array<i64, 3> kSizes[]{{32, 64, 96}, {160, 96, 288}, {33, 48, 80}};
  const std::tuple<ops::MatmulOptions, BlockShape, BlockShape> passes[]{
      {kForwardPass, {1, 16}, {16, 16}}, {kDgradPass, {1, 16}, {16, 16}}, {kWgradPass, {16, 1}, {16, 1}}};
  for (const auto& [m, n, k] : kSizes) {
    for (const auto& [options, a_block, b_block] : passes) {
      const Numbers a = uneven_blocks(m * k, 7), b = normals(n * k, 8, DType::BF16, 30);
      const i64 a_width = options.transpose_a ? m : k, b_width = options.transpose_b ? k : n;
      const Nvfp4Scale a_scale{.amax = amax_of(largest_magnitude(a)), .block = a_block},
          b_scale{.amax = amax_of(largest_magnitude(b)), .headroom = 4, .block = b_block};
      const Numbers x = rounded(a, a_width, a_scale), w = rounded(b, b_width, b_scale);
      const double factor = static_cast<double>(nvfp4_matrix_scale(static_cast<float>(largest_magnitude(a)), 1)) *
                            nvfp4_matrix_scale(static_cast<float>(largest_magnitude(b)), 4);
      for (const DType type : {DType::F32, DType::BF16}) {
        SCOPED_TRACE(str(m, " ", n, " ", k, " ", name_of(type)));
        const Numbers before = normals(m * n, 9, type);
        Tensor c = options.beta == 0 ? empty_matrix({m, n}, type) : matrix(before, n, type);
        ops::nvfp4_matmul(matrix(a, a_width), a_scale, matrix(b, b_width), b_scale, c, options);
        expect_product({m, n, k, options, type}, x, w, factor, before, c);
        if (HasFailure()) return;
      }
    }
  }
  const bool multiplies_codes = ops::recipe_emulation_reason(device(), GemmRecipe::Nvfp4).empty();
  EXPECT_EQ(gemm_choices(device()).find("\nnvfp4") != std::string::npos, multiplies_codes);
}

TEST_P(Nvfp4Test, RejectsInvalidArguments) {
  const Tensor x = matrix(normals(256, 10, DType::BF16), 16);
  Tensor y = empty_matrix({16, 16});
  const auto error = [&](const Nvfp4Scale& scale) { return error_of([&] { ops::round_to_nvfp4(x, scale, y); }); };
  EXPECT_NE(error({}), "") << "no amax";
  EXPECT_NE(error({.amax = amax_of(1), .block = {1, 32}}), "");
  EXPECT_NE(error({.amax = amax_of(1), .block = {32, 1}}), "");
  EXPECT_NE(error({.amax = amax_of(1), .stochastic = StochasticRounding{}}), "") << "no samples";
  EXPECT_NE(error({.amax = amax_of(1), .stochastic = random_of(1, {{0, 0, 8}})}), "") << "too few columns";
  EXPECT_EQ(error({.amax = amax_of(1), .stochastic = random_of(1, {{0, 0, 16}})}), "");
  if (!is_on_gpu()) return;
  EXPECT_NE(error({.amax = amax_of(1), .block = {8, 16}}), "") << "of no recipe";
  EXPECT_NE(error({.amax = amax_of(1), .block = {16, 16}, .stochastic = random_of(1, {{0, 0, 16}})}), "");
}

}  // namespace
}  // namespace mcpp::test::nvfp4_test
