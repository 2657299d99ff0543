#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/types.h"
#include "data/tokenizer/sentencepiece_normalizer.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::HasSubstr;

std::string field(int number, const std::string& content) {
  std::string text(1, static_cast<char>(number << 3 | 2));
  for (std::size_t size = content.size();; size >>= 7) {
    text += static_cast<char>(size >= 0x80 ? (size & 0x7F) | 0x80 : size);
    if (size < 0x80) return text + content;
  }
}

/// Returns a model that consists only of a table with these units at the start of an array of 256, and these
/// replacements.
std::string model_with(const std::vector<u32>& units, const std::string& replacements, int spec = 3) {
  std::vector<u32> array(256, 0x8000'0000);
  std::copy(units.begin(), units.end(), array.begin());
  const u32 bytes = static_cast<u32>(array.size() * sizeof(u32));
  std::string table(sizeof bytes + bytes, '\0');
  std::memcpy(table.data(), &bytes, sizeof bytes);
  std::memcpy(table.data() + sizeof bytes, array.data(), bytes);
  return field(spec, field(2, table + replacements));
}

std::string error_of(const std::string& model) {
  return test::input_error([&] { check_charsmaps(model, "x.model"); });
}

TEST(CharsmapTest, AcceptsTablesWithoutOutsideReferences) {
  const std::string replacements("a\0bc\0", 5);
  EXPECT_EQ(error_of(""), "");
  EXPECT_EQ(error_of(field(1, "a piece")), "");
  EXPECT_EQ(error_of(field(3, "")), "");
  EXPECT_EQ(error_of(model_with({0}, replacements)), "");
  EXPECT_EQ(error_of(model_with({1 << 10 | 1 << 8, 0x8000'0004}, replacements)), "");
}

TEST(CharsmapTest, RejectsReferencesOutsideTable) {
  const std::string replacements("a\0bc\0", 5);
  const auto outside = HasSubstr("x.model: damaged: its character map has an offset outside of the map");
  EXPECT_THAT(error_of(model_with({1 << 10 | 1 << 8, 0x8000'0005}, replacements)), outside);  // value
  EXPECT_THAT(error_of(model_with({256 << 10}, replacements)), outside);                      // children
  EXPECT_THAT(error_of(model_with({0, 1 << 9 | 1 << 10}, replacements)), outside);      // a large offset of a node
  EXPECT_THAT(error_of(model_with({0x8000'0000 | 256 << 10}, replacements)), outside);  // the root
  EXPECT_THAT(error_of(model_with({0}, "without end")), outside);
  EXPECT_THAT(error_of(model_with({0}, "")), outside);
  EXPECT_THAT(error_of(model_with({256 << 10}, replacements, 5)), outside);  // for decoding
  EXPECT_THAT(error_of(field(3, field(2, "abc"))), outside);
  EXPECT_THAT(error_of(field(3, field(2, std::string("\xFF\xFF\xFF\xFF", 4)))), outside);
}

TEST(CharsmapTest, RejectsFilesThatAreNotModels) {
  for (const std::string& text :
       {std::string("\x1A\x7F"), std::string("\x0B"), std::string(11, '\xFF'), std::string("\x09")})
    EXPECT_THAT(error_of(text), HasSubstr("x.model: not a sentencepiece model, or damaged"));
}

}  // namespace
}  // namespace mcpp
