// Messages of weights in fp8, compared with rounding the full weight.
#include "tensor/ops/low_precision/fp8_weights.h"

#include <limits>

#include "tests/support/errors.h"
#include "tests/support/fp8.h"
#include "tests/support/matrix_ops.h"

namespace mcpp::test::fp8_weights_test {
namespace {

constexpr BlockShape kBlock{128, 128};

struct Weight {
  const char* name;
  WeightBlocks blocks;
  i64 matrices;

  i64 numel() const { return matrices * blocks.rows * blocks.columns; }
};

const Weight kWeights[]{{"one scale, incomplete last group", {.rows = 30, .columns = 17}, 1},
                        {"one scale for several matrices", {.rows = 9, .columns = 40}, 3},
                        {"complete blocks", {.rows = 256, .columns = 128, .block = kBlock}, 1},
                        {"incomplete blocks", {.rows = 200, .columns = 320, .block = kBlock}, 1},
                        {"blocks of matrices", {.rows = 100, .columns = 192, .block = kBlock}, 3}};

class Fp8WeightsTest : public MatrixOps {
 protected:
  /// Returns values of very different magnitudes, padded to groups.
  static Numbers values(const Weight& weight) {
    Numbers x = test::normals(weight.numel(), 3, DType::BF16);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i / 1000 % 40) - 20);
    x.resize(
        static_cast<std::size_t>(packed_words(round_up(weight.numel(), kPackedBlock)) / kPackedWords * kPackedBlock));
    return x;
  }
  /// Encodes and decodes a weight in parts of `groups` groups, as ranks do that hold these parts.
  Numbers sent(const Weight& weight, const Numbers& x, i64 groups) {
    const Tensor all = matrix(x, std::ssize(x)).view({-1});
    Tensor amax = matrix(Numbers(static_cast<std::size_t>(weight.blocks.count(weight.numel())), 0), 1, DType::F32);
    amax = amax.view({-1});
    const auto for_each_part = [&](const auto& f) {
      for (i64 first = 0; first < all.numel(); first += groups * kPackedBlock)
        f(all.flat(first, std::min(groups * kPackedBlock, all.numel() - first)),
          WeightRange{weight.blocks, first, weight.numel()});
    };
    for_each_part([&](const Tensor& part, const WeightRange& range) { ops::add_weight_amax(part, range, amax); });
    Numbers result;
    for_each_part([&](const Tensor& part, const WeightRange& range) {
      Tensor message = Tensor::empty({packed_words(part.numel())}, DType::I32, part.device());
      Tensor decoded = Tensor::like(part);
      ops::pack_fp8_weights(part, range, amax, message);
      ops::unpack_fp8_weights(message, decoded);
      const Numbers numbers = to_doubles(decoded);
      result.insert(result.end(), numbers.begin(), numbers.end());
    });
    result.resize(static_cast<std::size_t>(weight.numel()));
    return result;
  }
  static Numbers rounded(const Weight& weight, Numbers x) {
    x.resize(static_cast<std::size_t>(weight.numel()));
    if (!weight.blocks.block.is_defined()) return in_fp8(x, Fp8Format::E4M3, largest_magnitude(x));
    Numbers result;
    const i64 elements = weight.blocks.rows * weight.blocks.columns;
    for (i64 m = 0; m < weight.matrices; ++m) {
      const Numbers matrix(x.begin() + m * elements, x.begin() + (m + 1) * elements);
      const Numbers part = in_fp8_blocks(matrix, weight.blocks.columns, Fp8Format::E4M3, kBlock);
      result.insert(result.end(), part.begin(), part.end());
    }
    return result;
  }
};

INSTANTIATE_TEST_SUITE_P(Levels, Fp8WeightsTest, testing::ValuesIn(all_targets()), target_name);

TEST_P(Fp8WeightsTest, DecodesToRoundedWeightWhenSentInParts) {
  for (const Weight& weight : kWeights) {
    const Numbers x = values(weight), expected = rounded(weight, x);
    for (const i64 groups : {1, 3, 7, 10000}) EXPECT_EQ(sent(weight, x, groups), expected) << weight.name;
  }
}

TEST_P(Fp8WeightsTest, SecondRoundingChangesNothing) {
  for (const Weight& weight : kWeights) {
    Numbers once = sent(weight, values(weight), 5);
    once.resize(values(weight).size());
    const Numbers twice = sent(weight, once, 3);
    once.resize(twice.size());
    EXPECT_EQ(twice, once) << weight.name;
  }
}

TEST_P(Fp8WeightsTest, NonFiniteValueMakesItsBlockNan) {
  for (const double none : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Weight& weight = kWeights[2];
    Numbers x = values(weight);
    x[130 * 128] = none;  // in the second block
    const Numbers found = sent(weight, x, 4);
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(std::isnan(found[i]), i >= 128 * 128) << i;
  }
}

TEST(WeightBlocksTest, BlocksCannotStraddleGroups) {
  EXPECT_TRUE((WeightBlocks{.rows = 3, .columns = 5}.can_pack())) << "one scale for all";
  EXPECT_TRUE((WeightBlocks{.rows = 3, .columns = 192, .block = kBlock}.can_pack()));
  EXPECT_FALSE((WeightBlocks{.rows = 3, .columns = 200, .block = kBlock}.can_pack()));
  EXPECT_FALSE((WeightBlocks{.rows = 3, .columns = 64, .block = {1, 32}}.can_pack()));
}

TEST(Fp8WeightMessagesTest, AreRejectedWhenSizesDiffer) {
  CpuDevice device;
  Tensor x = test::garbage({128}, DType::BF16, device), amax = Tensor::zeros({1}, DType::F32, device),
         message = Tensor::empty({packed_words(64)}, DType::I32, device);
  const WeightRange range{{.rows = 2, .columns = 64}, 0, 128};
  EXPECT_NE(error_of([&] { ops::pack_fp8_weights(x, range, amax, message); }), "") << "a short message";
  EXPECT_NE(error_of([&] { ops::unpack_fp8_weights(message, x); }), "");
  Tensor narrow = x.flat(0, 32);
  EXPECT_NE(error_of([&] { ops::add_weight_amax(narrow, range, amax); }), "") << "half a group";
  const WeightRange with_blocks{{.rows = 256, .columns = 64, .block = kBlock}, 0, 256 * 64};
  EXPECT_NE(error_of([&] { ops::add_weight_amax(x, with_blocks, amax); }), "") << "two blocks";
}

}  // namespace
}  // namespace mcpp::test::fp8_weights_test
