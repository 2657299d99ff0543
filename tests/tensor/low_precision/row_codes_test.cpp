// Rows in fp8 codes, compared with the rounding of matrices in blocks of a row and with the definition of the formats.
#include "tensor/ops/low_precision/row_codes.h"

#include <limits>

#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/ops/low_precision/recipe.h"
#include "tests/support/errors.h"
#include "tests/support/fp8.h"
#include "tests/support/matrix_ops.h"

namespace mcpp::test::row_codes_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Fp8Format kFormats[]{Fp8Format::E4M3, Fp8Format::E5M2};
constexpr std::pair<i64, i64> kShapes[]{{1, 1}, {3, 130}, {129, 65}, {7, 257}, {40, 256}, {0, 64}, {2, 3}};

class RowCodesTest : public MatrixOps {
 protected:
  Tensor encoded(const Tensor& x, const RowEncoding& encoding) {
    Tensor codes = Tensor::empty({x.dim(0), encoding.words(x.dim(1))}, DType::I32, device());
    ops::encode_rows(x, encoding, codes);
    return codes;
  }
  Numbers decoded(const Tensor& codes, const RowEncoding& encoding, i64 columns) {
    Tensor y = empty_matrix({codes.dim(0), columns});
    ops::decode_rows(codes, encoding, y);
    return to_doubles(y);
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, RowCodesTest, testing::ValuesIn(all_targets()), target_name);

/// Returns values of many magnitudes, with zeros of both signs.
Numbers values_of(i64 count) {
  Numbers x = normals(count, 1, DType::BF16);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0, static_cast<int>(i * 7 % 41) - 25);
  for (std::size_t i = 5; i < x.size(); i += 11) x[i] = i % 2 == 0 ? 0.0 : -0.0;
  return x;
}

TEST_P(RowCodesTest, DecodesToRoundedRows) {
  for (const auto& [rows, columns] : kShapes) {
    const Numbers x = values_of(rows * columns);
    for (const i64 block : {32, 128}) {
      for (const Fp8Format format : kFormats) {
        const RowEncoding encoding{.block = block, .format = format};
        const Tensor from = tensor_of(x, {rows, columns}, DType::BF16, device(), GetParam().first);
        const Numbers found = decoded(encoded(from, encoding), encoding, columns),
                      expected = in_fp8_blocks(x, columns, format, {1, block});
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(found[i], expected[i]) << rows << " x " << columns << " [" << i << "]";
          ASSERT_EQ(std::signbit(found[i]), std::signbit(expected[i])) << rows << " x " << columns << " [" << i << "]";
        }
      }
    }
  }
}

/// Codes and scales are the same on all devices; unused bytes are 0.
TEST_P(RowCodesTest, MatchesCodesAndScalesOfFormats) {
  constexpr i64 kRows = 3, kColumns = 70, kBlock = 32, kBytes = 76;  // 72 of codes, 4 of scales
  const Numbers x = values_of(kRows * kColumns);
  for (const Fp8Format format : kFormats) {
    const RowEncoding encoding{.block = kBlock, .format = format};
    EXPECT_EQ(encoding.words(kColumns) * 4, kBytes);
    const std::vector<std::byte> found = bytes_of(encoded(matrix(x, kColumns), encoding));
    std::vector<std::byte> expected(kRows * kBytes, std::byte{0});
    for (i64 row = 0; row < kRows; ++row) {
      for (i64 first = 0; first < kColumns; first += kBlock) {
        const auto from = x.begin() + row * kColumns + first;
        const Numbers part(from, from + std::min(kBlock, kColumns - first));
        const float scale = fp8_scale(format, static_cast<float>(largest_magnitude(part)));
        for (std::size_t i = 0; i < part.size(); ++i)
          expected[static_cast<std::size_t>(row * kBytes + first) + i] =
              std::byte{to_fp8(format, static_cast<float>(part[i]) * scale)};
        const auto biased = static_cast<u8>(127 - std::ilogb(scale));
        EXPECT_EQ(from_e8m0(biased), 1 / scale);
        expected[static_cast<std::size_t>(row * kBytes + 72 + first / kBlock)] = std::byte{biased};
      }
    }
    EXPECT_EQ(found, expected) << enum_name(format);
  }
}

/// A row that has been rounded is encoded without further error, so that senders and receivers may both round.
TEST_P(RowCodesTest, IsExactWhenRowsAreRounded) {
  constexpr i64 kColumns = 300;
  const Numbers x = values_of(8 * kColumns);
  for (const i64 block : {32, 128}) {
    for (const Fp8Format format : kFormats) {
      const RowEncoding encoding{.block = block, .format = format};
      const Numbers once = decoded(encoded(matrix(x, kColumns), encoding), encoding, kColumns);
      EXPECT_EQ(decoded(encoded(matrix(once, kColumns), encoding), encoding, kColumns), once);
      Tensor rounded = empty_matrix({8, kColumns});
      ops::round_to_fp8(matrix(once, kColumns), {.format = format, .block = {1, block}}, rounded);
      EXPECT_EQ(to_doubles(rounded), once);
    }
  }
}

TEST_P(RowCodesTest, NonFiniteValueTurnsItsBlockIntoNan) {
  constexpr i64 kRows = 5, kColumns = 100, kBlock = 32, kRow = 3, kColumn = 97;
  for (const double none : {std::nan(""), double{kInfinity}, -double{kInfinity}}) {
    Numbers x = normals(kRows * kColumns, 2, DType::BF16);
    x[kRow * kColumns + kColumn] = none;
    const RowEncoding encoding{.block = kBlock};
    const Numbers y = decoded(encoded(matrix(x, kColumns), encoding), encoding, kColumns);
    for (i64 i = 0; i < kRows; ++i)
      for (i64 j = 0; j < kColumns; ++j)
        ASSERT_EQ(std::isnan(y[static_cast<std::size_t>(i * kColumns + j)]),
                  i == kRow && j / kBlock == kColumn / kBlock)
            << i << ", " << j;
  }
}

/// Dispatchers pad with such rows.
TEST_P(RowCodesTest, ZeroWordsDecodeToZeros) {
  const RowEncoding encoding{.block = 32};
  const Tensor codes = Tensor::zeros({3, encoding.words(70)}, DType::I32, device());
  EXPECT_EQ(decoded(codes, encoding, 70), Numbers(3 * 70, 0));
}

/// Rows of codes are permuted like other rows; rows that do not exist are zeros.
TEST_P(RowCodesTest, GathersRows) {
  for (const i64 columns : {70, 130, 92}) {  // 19, 35 and 24 words, which are read one by one or as packs of four
    const RowEncoding encoding{.block = 32};
    const Tensor codes = encoded(matrix(values_of(4 * columns), columns), encoding);
    Tensor gathered = Tensor::empty({3, encoding.words(columns)}, DType::I32, device());
    ops::gather_rows(codes, integers_of({2, -1, 0}, device()), gathered);
    const auto row = [&](const Tensor& of, i64 i) { return bytes_of(of.slice(i, i + 1)); };
    EXPECT_EQ(row(gathered, 0), row(codes, 2));
    EXPECT_EQ(row(gathered, 1), std::vector<std::byte>(static_cast<std::size_t>(encoding.words(columns) * 4)));
    EXPECT_EQ(row(gathered, 2), row(codes, 0));
  }
}

TEST_P(RowCodesTest, RejectsOtherShapesAndTypes) {
  const RowEncoding encoding{.block = 32};
  const Tensor x = matrix(values_of(2 * 64), 64);
  Tensor few = Tensor::empty({2, encoding.words(64) - 1}, DType::I32, device()),
         floats = Tensor::empty({2, encoding.words(64)}, DType::F32, device()),
         codes = Tensor::empty({2, encoding.words(64)}, DType::I32, device());
  EXPECT_THROW(ops::encode_rows(x, encoding, few), Error);
  EXPECT_THROW(ops::encode_rows(x, encoding, floats), Error);
  EXPECT_THROW(ops::encode_rows(x.flat(0, 128), encoding, codes), Error);
  EXPECT_THROW(ops::encode_rows(matrix(values_of(2 * 64), 64, DType::F32), encoding, codes), Error);
  EXPECT_THROW(ops::encode_rows(x, {}, codes), Error);
  Tensor y = empty_matrix({3, 64});
  EXPECT_THROW(ops::decode_rows(codes, encoding, y), Error);
}

}  // namespace
}  // namespace mcpp::test::row_codes_test
