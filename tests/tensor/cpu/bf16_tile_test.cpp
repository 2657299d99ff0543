// bf16 products of attention tiles on every unit that this CPU has.
#include "tensor/cpu/attention/bf16_tile.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/philox.h"
#include "tensor/cpu/simd/bf16_path.h"

namespace mcpp::kernel {
namespace {

constexpr i64 kM = 64, kN = 96, kK = 160, kGap = 8;  // the row stride is larger than the row length

std::vector<BFloat16> normals(i64 count, u64 seed) {
  std::vector<BFloat16> x;
  for (i64 i = 0; i < count; ++i) x.push_back(from_double<BFloat16>(philox_normal(seed, static_cast<u64>(i))));
  return x;
}

template <class Multiply>
void expect_products(const Multiply& multiply) {
  const i64 lda = kK + kGap, ldb = 2 * (kN + kGap), ldc = kN + kGap;
  const std::vector<BFloat16> a = normals(kM * lda, 1), b = normals(kK / 2 * ldb, 2);
  for (const bool accumulate : {false, true}) {
    std::vector<float> c(static_cast<std::size_t>(kM * ldc), 3.0F);
    multiply(Bf16Operands{a.data(), lda, b.data(), ldb, c.data(), ldc}, accumulate);
    for (i64 i = 0; i < kM; ++i) {
      for (i64 j = 0; j < kN; ++j) {
        double sum = accumulate ? 3 : 0;
        for (i64 k = 0; k < kK; ++k) {
          sum += to_double(a[static_cast<std::size_t>(i * lda + k)]) *
                 to_double(b[static_cast<std::size_t>(k / 2 * ldb + 2 * j + k % 2)]);
        }
        ASSERT_NEAR(c[static_cast<std::size_t>(i * ldc + j)], sum, 1e-4) << i << ", " << j;
      }
      for (i64 j = kN; j < ldc; ++j) ASSERT_EQ(c[static_cast<std::size_t>(i * ldc + j)], 3.0F) << "write outside of C";
    }
  }
}

TEST(Bf16TileTest, DotProductMatchesReference) {
  if (!can_use(Bf16Path::Dots)) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  expect_products([](const Bf16Operands& x, bool accumulate) { dot_multiply(x, kM, kN, kK, accumulate); });
}

TEST(Bf16TileTest, AmxMatchesReference) {
  if (!can_use(Bf16Path::Amx)) GTEST_SKIP() << "this CPU has no AMX";
  const TileSession session;
  expect_products([](const Bf16Operands& x, bool accumulate) { amx_multiply(x, kM, kN, kK, accumulate); });
}

}  // namespace
}  // namespace mcpp::kernel
