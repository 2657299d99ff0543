#include "tensor/cpu/normal_draws.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/philox.h"

namespace mcpp {
namespace {

constexpr u64 kKey = 0x9E3779B97F4A7C15;

void expect_equal_to_scalar(u64 first, std::size_t count) {
  std::vector<double> drawn(count);
  draw_normal(kKey, first, drawn);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(drawn[i], philox_normal(kKey, first + i)) << first << " + " << i;
}

TEST(DrawNormalTest, EqualsScalarFormBitwise) {
  expect_equal_to_scalar(0, 1 << 20);
}

TEST(DrawNormalTest, EqualsScalarFormAtAnyOffsetAndCount) {
  for (u64 first = 0; first < 9; ++first) {
    for (const std::size_t count : {0, 1, 2, 3, 5, 511, 512, 513, 1027}) expect_equal_to_scalar(first, count);
  }
}

TEST(DrawNormalTest, EqualsScalarFormWhereBlockNumberExceeds32Bits) {
  expect_equal_to_scalar((u64{1} << 34) - 100, 200);
}

}  // namespace
}  // namespace mcpp
