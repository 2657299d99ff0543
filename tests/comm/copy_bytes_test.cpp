#include "comm/copy_bytes.h"

#include <gtest/gtest.h>

#include <vector>

namespace mcpp {
namespace {

// Covers any alignment within a cache line, below and above the size at which copies bypass the caches.
TEST(CopyBytesTest, CopiesExactRange) {
  constexpr i64 kMaxBytes = (9 << 20) + 77, kSpace = kMaxBytes + 256;
  std::vector<u8> from(kSpace);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<u8>(i * 2654435761U >> 13);
  for (const i64 bytes : {0L, 1L, 63L, 4097L, (8L << 20) - 1, 8L << 20, (8L << 20) + 1, static_cast<long>(kMaxBytes)}) {
    for (const i64 shift : {0, 1, 15, 64, 71}) {
      std::vector<u8> to(kSpace, 0xab);
      const i64 at = 72 - shift;
      copy_bytes(to.data() + at, from.data() + shift, bytes);
      std::vector<u8> expected(kSpace, 0xab);
      std::copy_n(from.begin() + shift, bytes, expected.begin() + at);
      EXPECT_TRUE(to == expected) << bytes << " bytes from " << shift << " to " << at;
    }
  }
}

TEST(CopyBytesTest, AcceptsSameSourceAndEmptyCopy) {
  std::vector<u8> bytes(10, 3);
  copy_bytes(bytes.data(), bytes.data(), 10);
  copy_bytes(bytes.data(), nullptr, 0);
  EXPECT_EQ(bytes, std::vector<u8>(10, 3));
}

}  // namespace
}  // namespace mcpp
