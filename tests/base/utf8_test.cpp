#include "base/utf8.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

TEST(Utf8Test, FindsFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8("plain, \xC3\xA9, \xE4\xB8\xAD, \xF0\x9F\x98\x80"), -1);
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2);
  EXPECT_EQ(find_invalid_utf8("ab\x80"), 2);
  EXPECT_EQ(find_invalid_utf8("\xC3"), 0);
  EXPECT_EQ(find_invalid_utf8("a\xC0\x80"), 1);         // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x80\x80"), 0);      // overlong
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("\xF0\x9F\x98z"), 0);
}

TEST(Utf8Test, CountsCharacters) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"), 4);
}

TEST(Utf8Test, ReplacesEachInvalidByte) {
  EXPECT_EQ(replace_invalid_utf8("a\xFF\xC3z\xC3\xA9"), "a\xEF\xBF\xBD\xEF\xBF\xBDz\xC3\xA9");
  EXPECT_EQ(find_invalid_utf8(replace_invalid_utf8("\xF0\x9F\x98\xE4")), -1);
}

TEST(Utf8Test, HoldsBackIncompleteSuffix) {
  const std::string smile = "\xF0\x9F\x98\x80";
  for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(utf8_incomplete_suffix(smile.substr(0, n)), n);
  EXPECT_EQ(utf8_incomplete_suffix(smile), 0);
  EXPECT_EQ(utf8_incomplete_suffix("\xC3\xA9"), 0);
  EXPECT_EQ(utf8_incomplete_suffix("\x80\x80"), 0);
  EXPECT_EQ(utf8_incomplete_suffix("\xED\xA0"), 0);
  EXPECT_EQ(utf8_boundary("ab\xF0\x9F\x98\x80", 4), 2u);
  EXPECT_EQ(utf8_boundary("ab\xF0\x9F\x98\x80", 2), 2u);
  EXPECT_EQ(utf8_boundary("ab", 9), 2u);
}

}  // namespace
}  // namespace mcpp
