// Blocks of an arena keep their addresses, and nothing else uses them.
#include "tensor/memory_arena.h"

#include <gmock/gmock.h>

#include <thread>

#include "tensor/tensor.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using Growth = MemoryArena::Growth;

Tensor floats(i64 count, Device& device, MemoryClass c = MemoryClass::Activations) {
  return Tensor::empty({count}, DType::F32, device, c);
}

class MemoryArenaTest : public testing::Test {
 protected:
  /// Allocates the same tensors in every call, some of which reuse the memory of others. Returns their addresses.
  std::vector<void*> pass() {
    std::vector<void*> addresses;
    for (int i = 0; i < 3; ++i) {
      const Tensor small = floats(10, device_), large = floats(1000, device_);
      addresses.insert(addresses.end(), {small.raw(), large.raw()});
    }
    return addresses;
  }

  CpuDevice device_;
};

TEST_F(MemoryArenaTest, RepeatedPassesHaveTheSameAddresses) {
  MemoryArena arena(device_);
  std::vector<void*> first, second;
  {
    const MemoryArena::Scope scope(arena, Growth::Allowed);
    first = pass();
  }
  const Tensor between = floats(1000, device_);
  {
    const MemoryArena::Scope scope(arena, Growth::Refused);
    second = pass();
  }
  EXPECT_EQ(first, second);
  EXPECT_THAT(first, testing::Not(testing::Contains(between.raw())));
  EXPECT_EQ(arena.bytes(), padded_alloc_size(40) + padded_alloc_size(4000));
  EXPECT_EQ(arena.live_bytes(), 0);
}

TEST_F(MemoryArenaTest, TakesFreeBlocksOfThePoolAndReturnsThem) {
  void* const pooled = floats(1000, device_).raw();
  {
    MemoryArena arena(device_);
    const MemoryArena::Scope scope(arena, Growth::Allowed);
    EXPECT_EQ(floats(1000, device_).raw(), pooled);
  }
  EXPECT_EQ(floats(1000, device_).raw(), pooled);
}

TEST_F(MemoryArenaTest, MemoryTableCountsBlocksByUse) {
  const auto use_of = [this](MemoryClass c) { return device_.memory().by_class[static_cast<std::size_t>(c)]; };
  const i64 size = padded_alloc_size(4000);
  {
    MemoryArena arena(device_);
    const MemoryArena::Scope scope(arena, Growth::Allowed);
    floats(1000, device_, MemoryClass::Workspace);
    EXPECT_EQ(use_of(MemoryClass::RecordedPasses).bytes, size);
    {
      const Tensor kept = floats(1000, device_);
      EXPECT_EQ(use_of(MemoryClass::Activations).bytes, size);
      EXPECT_EQ(use_of(MemoryClass::RecordedPasses).bytes, 0);
      EXPECT_EQ(device_.memory().total.bytes, size);
    }
    EXPECT_EQ(use_of(MemoryClass::Activations).bytes, 0);
    EXPECT_EQ(use_of(MemoryClass::RecordedPasses).bytes, size);
  }
  EXPECT_EQ(use_of(MemoryClass::RecordedPasses).bytes, 0);
  EXPECT_EQ(device_.memory().total.bytes, 0);
  for (const MemoryClass c : {MemoryClass::Workspace, MemoryClass::Activations}) EXPECT_EQ(use_of(c).peak, size);
  EXPECT_EQ(device_.memory().total.peak, size);
}

TEST_F(MemoryArenaTest, TensorsMayOutliveTheScope) {
  MemoryArena arena(device_);
  Tensor kept;
  {
    const MemoryArena::Scope scope(arena, Growth::Allowed);
    kept = floats(1000, device_);
  }
  EXPECT_EQ(arena.live_bytes(), padded_alloc_size(4000));
  void* const address = kept.raw();
  kept = {};
  EXPECT_EQ(arena.live_bytes(), 0);
  EXPECT_NE(floats(1000, device_).raw(), address) << "it belongs to the arena";
}

TEST_F(MemoryArenaTest, RefusesGrowth) {
  MemoryArena arena(device_);
  const MemoryArena::Scope scope(arena, Growth::Refused);
  EXPECT_CONTAINS(test::error_with(ExitCode::Internal, [&] { floats(1000, device_); }), "4000 bytes more");
}

TEST_F(MemoryArenaTest, OtherThreadsUseThePool) {
  MemoryArena arena(device_);
  const MemoryArena::Scope scope(arena, Growth::Allowed);
  std::thread([&] { floats(1000, device_); }).join();
  EXPECT_EQ(arena.bytes(), 0);
  EXPECT_FALSE(arena.has_foreign_release());
}

TEST_F(MemoryArenaTest, DetectsReleaseOfOtherMemory) {
  Tensor outside = floats(1000, device_);
  MemoryArena arena(device_);
  const MemoryArena::Scope scope(arena, Growth::Allowed);
  floats(10, device_);
  EXPECT_FALSE(arena.has_foreign_release());
  outside = {};
  EXPECT_TRUE(arena.has_foreign_release());
}

TEST_F(MemoryArenaTest, ScopesDoNotNest) {
  MemoryArena first(device_), second(device_);
  const MemoryArena::Scope scope(first, Growth::Allowed);
  EXPECT_CONTAINS(test::error_of([&] { const MemoryArena::Scope inner(second, Growth::Allowed); }), "already");
}

}  // namespace
}  // namespace mcpp
