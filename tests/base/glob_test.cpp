#include "base/glob.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>

namespace mcpp {
namespace {

TEST(MatchesGlobTest, MatchesWholeText) {
  EXPECT_TRUE(matches_glob("decoder.layers.3.mlp.linear_fc1.weight", "decoder.layers.*.linear_fc?.weight"));
  EXPECT_TRUE(matches_glob("decoder.layers.3.mlp.linear_fc1.weight", "*"));
  EXPECT_FALSE(matches_glob("decoder.layers.3.mlp.linear_fc1.weight", "decoder.layers.3"));
  EXPECT_FALSE(matches_glob("decoder.layers.13.mlp", "decoder.layers.?.mlp"));
  EXPECT_TRUE(matches_glob("", "**"));
  EXPECT_FALSE(matches_glob("", "?"));
  EXPECT_FALSE(matches_glob("axb", "a.b"));
}

TEST(MatchesGlobTest, AgreesWithRegularExpressions) {
  std::mt19937 random(3);
  const auto draw = [&](const std::string& letters) {
    std::string text(random() % 7, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string text = draw("ab."), pattern = draw("ab.*?");
    std::string expression;
    for (const char c : pattern) expression += c == '*' ? ".*" : c == '?' ? "." : c == '.' ? "\\." : std::string(1, c);
    const bool expected = std::regex_match(text, std::regex(expression));
    EXPECT_EQ(matches_glob(text, pattern), expected) << text << " and " << pattern;
    matches += expected;
  }
  EXPECT_GT(matches, 100);
}

}  // namespace
}  // namespace mcpp
