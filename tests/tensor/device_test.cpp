#include "tensor/device.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tensor/tensor.h"
#include "tests/support/errors.h"

namespace mcpp::test {
namespace {

/// CPU memory limited to a number of bytes, which tracks its allocations.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(i64 bytes) : Device(DeviceType::Cpu), left_(bytes) {}
  ~SmallDevice() override {
    free_pool();
    EXPECT_TRUE(blocks_.empty()) << "memory was not given back";
  }
  i64 allocations = 0;
  std::size_t blocks() const { return blocks_.size(); }
  /// Returns the size of the block that begins at `data`.
  i64 size_of_block(void* data) const { return blocks_.at(data); }

 private:
  void* system_allocate(i64 bytes) override {
    if (bytes > left_) return nullptr;
    ++allocations;
    left_ -= bytes;
    void* data = ::operator new(static_cast<std::size_t>(bytes), std::align_val_t(64));
    blocks_[data] = bytes;
    return data;
  }
  void system_free(void* data) noexcept override {
    left_ += blocks_.at(data);
    blocks_.erase(data);
    ::operator delete(data, std::align_val_t(64));
  }

  i64 left_;
  std::map<void*, i64> blocks_;
};

constexpr i64 kAmpleMemory = i64{1} << 40;

TEST(DeviceMemoryTest, PadsAllocationsOnlySlightly) {
  SmallDevice device(kAmpleMemory);
  for (i64 bytes = 1; bytes < (i64{1} << 22); bytes += 1 + bytes / 7) {
    void* data = device.allocate(bytes, MemoryClass::Other);
    const i64 size = device.size_of_block(data);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, std::max(bytes + 63, bytes + bytes / 16)) << bytes;
    EXPECT_EQ(size % 64, 0) << bytes;
    device.release(data, bytes, MemoryClass::Other);
  }
}

TEST(DeviceMemoryTest, ReusesReleasedBlocks) {
  SmallDevice device(kAmpleMemory);
  void* first = device.allocate(100'000, MemoryClass::Params);
  device.release(first, 100'000, MemoryClass::Params);
  EXPECT_EQ(device.allocate(100'001, MemoryClass::Grads), first) << "of the same size but for rounding";
  void* second = device.allocate(100'000, MemoryClass::Params);
  EXPECT_NE(second, first) << "in use";
  device.release(second, 100'000, MemoryClass::Params);
  void* larger = device.allocate(200'000, MemoryClass::Params);
  EXPECT_NE(larger, second);
  EXPECT_EQ(device.allocations, 3);
  device.release(first, 100'001, MemoryClass::Grads);
  device.release(larger, 200'000, MemoryClass::Params);
}

TEST(DeviceMemoryTest, TrimFreesUnusedBlocks) {
  SmallDevice device(kAmpleMemory);
  Tensor used = Tensor::empty({1000}, DType::F32, device);
  Tensor::empty({5000}, DType::F32, device);  // released immediately
  EXPECT_EQ(device.blocks(), 2u);
  device.trim();
  EXPECT_EQ(device.blocks(), 1u);
}

TEST(DeviceMemoryTest, FreesPoolBeforeRunningOutOfMemory) {
  SmallDevice device(1 << 20);
  void* data = device.allocate(700'000, MemoryClass::Activations);
  device.release(data, 700'000, MemoryClass::Activations);
  data = device.allocate(1'000'000, MemoryClass::Activations);  // fits only without the pooled block
  const std::string message = error_of([&] { device.allocate(100'000, MemoryClass::Grads); });
  EXPECT_NE(message.find("out of memory"), std::string::npos) << message;
  EXPECT_NE(message.find("gradients"), std::string::npos) << message;
  EXPECT_EQ(device.memory().total.bytes, device.size_of_block(data)) << "what failed is not counted";
  device.release(data, 1'000'000, MemoryClass::Activations);
  data = device.allocate(100'000, MemoryClass::Grads);  // allocation works again
  device.release(data, 100'000, MemoryClass::Grads);
}

TEST(DeviceMemoryTest, ReportsUseAndPeakByClass) {
  SmallDevice device(kAmpleMemory);
  const auto use = [&](MemoryClass c) { return device.memory().by_class[static_cast<std::size_t>(c)]; };
  void* params = device.allocate(640, MemoryClass::Params);
  void* grads = device.allocate(1280, MemoryClass::Grads);
  device.release(grads, 1280, MemoryClass::Grads);
  EXPECT_EQ(use(MemoryClass::Params).bytes, 640);
  EXPECT_EQ(use(MemoryClass::Grads).bytes, 0);
  EXPECT_EQ(use(MemoryClass::Grads).peak, 1280);
  EXPECT_EQ(device.memory().total.peak, 1920);
  device.reset_peak();
  EXPECT_EQ(use(MemoryClass::Grads).peak, 0);
  EXPECT_EQ(device.memory().total.peak, 640);
  device.release(params, 640, MemoryClass::Params);
  EXPECT_EQ(device.allocate(0, MemoryClass::Other), nullptr);
  EXPECT_EQ(device.memory().total.bytes, 0);
}

// Prefetching and saving threads release tensors while the training thread allocates.
TEST(DeviceMemoryTest, IsThreadSafe) {
  SmallDevice device(kAmpleMemory);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&device, t] {
      for (i64 i = 0; i < 2000; ++i) {
        Tensor x = Tensor::empty({1 + (i * 37 + t) % 100}, DType::I32, device);
        x.data<i32>()[0] = t;
        EXPECT_EQ(x.data<i32>()[0], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device.memory().total.bytes, 0);
  EXPECT_LE(device.memory().total.peak, 4 * 448);
}

}  // namespace
}  // namespace mcpp::test
