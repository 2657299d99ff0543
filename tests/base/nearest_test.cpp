#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"

namespace mcpp {
namespace {

using testing::ElementsAre;

TEST(NearestTest, FindsDivisorsAndMultiples) {
  EXPECT_THAT(nearest_divisors(16, 3), ElementsAre(2, 4));
  EXPECT_THAT(nearest_divisors(16, 8), ElementsAre(8));
  EXPECT_THAT(nearest_divisors(16, 20), ElementsAre(16));
  EXPECT_THAT(nearest_divisors(7, 3), ElementsAre(1, 7));
  EXPECT_THAT(nearest_multiples(4, 22), ElementsAre(20, 24));
  EXPECT_THAT(nearest_multiples(4, 3), ElementsAre(4));
  EXPECT_THAT(nearest_multiples(4, 8), ElementsAre(8));
}

}  // namespace
}  // namespace mcpp
