#include "base/number_format.h"

#include <gtest/gtest.h>

#include <limits>

namespace mcpp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(NumberFormatTest, FormatsFixedAndScientificAsPythonDoes) {
  EXPECT_EQ(fixed(12.25, 1), "12.2");  // ties go to even
  EXPECT_EQ(fixed(0, 3), "0.000");
  EXPECT_EQ(fixed(-kInf, 3), "-inf");
  EXPECT_EQ(fixed(1e308, 0).size(), 309u);
  EXPECT_EQ(significant(29.9006, 4), "29.90");
  EXPECT_EQ(significant(9.99996, 4), "10.00");
  EXPECT_EQ(significant(29.9006, 6), "29.9006");
  EXPECT_EQ(significant(12345.6, 4), "12350");
  EXPECT_EQ(significant(-0.00123456, 4), "-0.001235");
  EXPECT_EQ(significant(0, 4), "0");
  EXPECT_EQ(significant(kInf, 4), "inf");
  EXPECT_EQ(scientific(1.5e-4, 6), "1.500000E-04");
  EXPECT_EQ(scientific(kNan, 6), "nan");
}

TEST(NumberFormatTest, ShortestRoundTripsAndAlwaysHasDecimalPoint) {
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1e-5), "1e-05");
  EXPECT_EQ(shortest(12), "12.0");
  EXPECT_EQ(shortest(-3), "-3.0");
  EXPECT_EQ(shortest(1e22), "1e+22");
  EXPECT_EQ(std::stod(shortest(1.0 / 3)), 1.0 / 3);
}

TEST(NumberFormatTest, PadsLeftAndRight) {
  EXPECT_EQ(pad_left("ab", 4), "  ab");
  EXPECT_EQ(pad_right("ab", 4), "ab  ");
  EXPECT_EQ(pad_left("abcde", 4), "abcde");
}

}  // namespace
}  // namespace mcpp
