#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mcpp {
namespace {

// Known-answer vectors published with Random123 (kat_vectors, philox 4x32 10).
TEST(PhiloxTest, MatchesPublishedVectors) {
  EXPECT_EQ(philox4x32(0, {0, 0, 0, 0}), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~u64{0}, {~0u, ~0u, ~0u, ~0u}), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(NormalQuantileTest, InvertsDistributionFunction) {
  for (double p : {1e-10, 1e-9, 1e-6, 1e-3, 0.02, 0.075, 0.25, 0.4, 0.5, 0.77, 0.95, 0.999, 1 - 1e-9}) {
    const double x = normal_quantile(p);
    EXPECT_NEAR(0.5 * std::erfc(-x / std::sqrt(2.0)) / p, 1, 1e-12) << p;
  }
}

TEST(PhiloxNormalTest, HasUnitVarianceAndZeroMean) {
  const u64 key = philox_key(7, "decoder.layers.0.mlp.linear_fc1.weight");
  double sum = 0, squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = philox_normal(key, i);
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 4 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(2.0 / kCount));
}

TEST(PhiloxKeyTest, DependsOnNameSeedAndIndex) {
  EXPECT_NE(philox_key(1, "a"), philox_key(1, "b"));
  EXPECT_NE(philox_key(1, "a"), philox_key(2, "a"));
  EXPECT_NE(philox_key(1, "a", 0), philox_key(1, "a", 1));
}

}  // namespace
}  // namespace mcpp
