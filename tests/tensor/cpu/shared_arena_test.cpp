#include "tensor/cpu/shared_arena.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "tensor/tensor.h"

namespace mcpp {
namespace {

constexpr i64 kMiB = 1 << 20;

/// Returns the bytes of memory that an arena occupies in the system.
i64 resident_bytes(const SharedArena& arena) {
  struct stat status {};
  EXPECT_EQ(::fstat(arena.name().fd, &status), 0);
  return status.st_blocks * 512;
}

void fill(void* block, int value, i64 bytes) {
  std::memset(block, value, static_cast<std::size_t>(bytes));
}

TEST(SharedArenaTest, BlocksAreAlignedDisjointAndKeepTheirContents) {
  const auto arena = SharedArena::create();
  ASSERT_NE(arena, nullptr);
  struct Block {
    std::byte* data;
    i64 bytes;
    int value;
  };
  std::vector<Block> blocks;
  std::mt19937 random(1);
  for (int k = 0; k < 400; ++k) {
    if (k % 3 == 2) {
      const auto victim = blocks.begin() + static_cast<i64>(random() % blocks.size());
      arena->free(victim->data);
      blocks.erase(victim);
      continue;
    }
    const i64 bytes = SharedArena::kSmallestBlock + static_cast<i64>(random() % (k % 10 == 0 ? 5 * kMiB : 200000));
    const Block block{static_cast<std::byte*>(arena->allocate(bytes)), bytes, k % 256};
    ASSERT_NE(block.data, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % (bytes >= 2 * kMiB ? 2 * kMiB : 4096), 0);
    EXPECT_TRUE(arena->contains(block.data) && arena->contains(block.data + bytes - 1));
    fill(block.data, block.value, bytes);
    blocks.push_back(block);
  }
  for (const Block& block : blocks) {
    for (i64 i = 0; i < block.bytes; i += 509) ASSERT_EQ(static_cast<int>(block.data[i]), block.value);
  }
}

TEST(SharedArenaTest, ReturnsFreedMemoryAndMergesFreeBlocks) {
  const auto arena = SharedArena::create();
  void *a = arena->allocate(8 * kMiB), *b = arena->allocate(8 * kMiB), *c = arena->allocate(8 * kMiB);
  for (void* block : {a, b, c}) fill(block, 1, 8 * kMiB);
  EXPECT_GE(resident_bytes(*arena), 24 * kMiB);
  arena->free(a);
  EXPECT_LT(resident_bytes(*arena), 17 * kMiB);
  arena->free(c);
  arena->free(b);
  EXPECT_LT(resident_bytes(*arena), kMiB);
  EXPECT_EQ(arena->allocate(24 * kMiB), a);
}

TEST(SharedArenaTest, ReturnsNullWhenFull) {
  const auto arena = SharedArena::create();
  EXPECT_EQ(arena->allocate(arena->name().bytes), nullptr);
  EXPECT_NE(arena->allocate(arena->name().bytes / 2), nullptr);
  EXPECT_EQ(arena->allocate(arena->name().bytes / 2), nullptr);
  EXPECT_NE(arena->allocate(kMiB), nullptr);
}

TEST(SharedArenaTest, IsSharedWithOtherProcesses) {
  const auto arena = SharedArena::create();
  auto* data = static_cast<char*>(arena->allocate(kMiB));
  fill(data, 3, kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto mapping = map_arena(arena->name());
    if (!mapping) ::_exit(1);
    auto* seen = reinterpret_cast<char*>(mapping->base()) + arena->offset_of(data);
    if (seen == data || seen[100] != 3) ::_exit(2);
    seen[100] = 4;
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(data[100], 4);
}

TEST(SharedArenaTest, MappingFailsForWrongArenaName) {
  const auto arena = SharedArena::create(), other = SharedArena::create();
  EXPECT_NE(arena->name().id, other->name().id);
  const auto changed = [&](auto change) {
    ArenaName name = arena->name();
    change(name);
    return map_arena(name);
  };
  EXPECT_NE(changed([](ArenaName&) {}), nullptr);
  EXPECT_EQ(changed([&](ArenaName& name) { name.fd = other->name().fd; }), nullptr);
  EXPECT_EQ(changed([](ArenaName& name) { name.fd = 0; }), nullptr);
  EXPECT_EQ(changed([](ArenaName& name) { name.fd = 12345; }), nullptr);
  EXPECT_EQ(changed([](ArenaName& name) { name.owner = 0; }), nullptr);
}

TEST(SharedArenaTest, HoldsLargeBuffersOfDevice) {
  CpuDevice device({.shared = true}), plain;
  EXPECT_EQ(plain.arena(), nullptr);
  ASSERT_NE(device.arena(), nullptr);
  const SharedArena& arena = *device.arena();
  {
    const Tensor big = Tensor::zeros({kMiB}, DType::F32, device), small = Tensor::zeros({100}, DType::F32, device);
    EXPECT_TRUE(arena.contains(big.raw()));
    EXPECT_FALSE(arena.contains(small.raw()));
    EXPECT_GE(resident_bytes(arena), 4 * kMiB);
  }
  device.trim();
  EXPECT_LT(resident_bytes(arena), kMiB);
}

}  // namespace
}  // namespace mcpp
