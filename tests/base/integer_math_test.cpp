#include "base/integer_math.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

TEST(IntegerMathTest, RoundsUpToNextMultiple) {
  static_assert(ceil_div(0, 4) == 0 && ceil_div(1, 4) == 1 && ceil_div(4, 4) == 1 && ceil_div(5, 4) == 2);
  static_assert(round_up(0, 4) == 0 && round_up(1, 4) == 4 && round_up(4, 4) == 4 && round_up(5, 4) == 8);
  EXPECT_EQ(round_up((i64{1} << 40) + 1, 4096), (i64{1} << 40) + 4096) << "beyond 32 bits";
}

}  // namespace
}  // namespace mcpp
