#include "base/strings.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

TEST(StringsTest, SplitAndJoinAreInverse) {
  const std::vector<std::string> parts = split("a,,b", ',');
  EXPECT_EQ(parts, (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(join(parts, ","), "a,,b");
}

TEST(StringsTest, FormatsHumanReadableQuantities) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(3.4 * (1 << 30)), "3.40 GiB");
  EXPECT_EQ(human_count(124.44e6), "124.4M");
  EXPECT_EQ(human_seconds(185), "3m05s");
  EXPECT_EQ(human_seconds(3720), "1h02m");
  EXPECT_EQ(human_step_seconds(0.00362), "3.6 ms");
  EXPECT_EQ(human_step_seconds(185), "3m05s");
}

TEST(StringsTest, NearestNameSuggestsOnlyLikelyMisspellings) {
  const std::vector<std::string> names{"num_layers", "hidden_size", "seq_length"};
  EXPECT_EQ(nearest_name("num_layer", names), "num_layers");
  EXPECT_EQ(nearest_name("hiden_size", names), "hidden_size");
  EXPECT_EQ(nearest_name("qes_length", names), "seq_length");
  EXPECT_EQ(nearest_name("mdoel", std::vector<std::string>{"data", "model"}), "model");
  EXPECT_EQ(nearest_name("zzz", names), "");
}

}  // namespace
}  // namespace mcpp
