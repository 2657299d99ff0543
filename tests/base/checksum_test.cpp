#include "base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/file.h"

namespace mcpp {
namespace {

TEST(ChecksumTest, MatchesOneShotHashWhenUpdatedInChunks) {
  std::vector<std::byte> bytes(100'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t chunk : {1, 17, 256, 4096, 100'000}) {
    Checksum checksum;
    for (std::size_t at = 0; at < all.size(); at += chunk) {
      checksum.update(all.subspan(at, std::min(chunk, all.size() - at)));
    }
    EXPECT_EQ(checksum.hex(), checksum_hex(all)) << chunk;
  }
  EXPECT_EQ(Checksum().hex(), checksum_hex(""));
  EXPECT_EQ(Checksum().hex(), checksum_hex(std::span<const std::byte>()));
  const std::string text = "a text";
  EXPECT_EQ(checksum_hex(text), checksum_hex(std::as_bytes(std::span(text))));
}

}  // namespace
}  // namespace mcpp
