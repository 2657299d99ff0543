#include "tensor/host/async_copy.h"

#include "tensor/host/pinned_buffer_pool.h"
#include "tensor/ops/ops.h"
#include "tests/support/gpu.h"
#include "tests/support/lazy_copies.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

class AsyncCopyTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_device(GetParam());
    copies_ = make_async_copy_engine(*device_);
    rooms_ = std::make_unique<PinnedBufferPool>(*copies_, MemoryClass::Other);
  }
  Tensor filled(i64 count, i32 value) {
    return integers_of(std::vector<i32>(static_cast<std::size_t>(count), value), *device_);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<PinnedBufferPool> rooms_;
  std::unique_ptr<AsyncCopyEngine> copies_;
};

INSTANTIATE_TEST_SUITE_P(Devices, AsyncCopyTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(AsyncCopyTest, CopyResultsOfEarlierOps) {
  constexpr i64 kCount = 4 << 20;
  for (i32 round = 1; round < 5; ++round) {
    Tensor x = random_tensor({kCount}, DType::F32, *device_, 1, 1, 0),
           sum = random_tensor({kCount}, DType::F32, *device_, 2);
    for (i32 i = 0; i < round; ++i) ops::add_to(x, sum);
    const auto room = rooms_->take({kCount}, DType::F32);
    AsyncCopy out = copies_->to_host(sum, *room);
    const Tensor expected = sum;
    out.wait();
    EXPECT_EQ(std::memcmp(room->raw(), bytes_of(expected).data(), static_cast<std::size_t>(expected.bytes())), 0);
  }
}

TEST_P(AsyncCopyTest, LaterOpsWaitForCopy) {
  constexpr i64 kCount = 4 << 20;
  for (i32 round = 0; round < 10; ++round) {
    Tensor there = filled(kCount, round);
    const auto room = rooms_->take({kCount}, DType::I32);
    AsyncCopy out = copies_->to_host(there, *room);
    out.make_stream_wait();
    write_values(std::vector<i32>(kCount, -1), there);  // after the copy
    Tensor back = Tensor::like(there);
    AsyncCopy in = copies_->to_device(*room, back);
    in.make_stream_wait();
    EXPECT_EQ(read_values<i32>(back), std::vector<i32>(kCount, round));
    EXPECT_EQ(read_values<i32>(there), std::vector<i32>(kCount, -1));
  }
}

// Tensors (for instance activations) are released while their copy is in flight, and their memory is reused.
TEST_P(AsyncCopyTest, KeepReleasedMemoryUntilDone) {
  constexpr i64 kCount = 1 << 20;
  std::vector<std::shared_ptr<const Tensor>> rooms;
  std::vector<AsyncCopy> num_pending;
  for (i32 i = 0; i < 20; ++i) {
    rooms.push_back(rooms_->take({kCount}, DType::I32));
    num_pending.push_back(copies_->to_host(filled(kCount, i), *rooms.back()));
    if (i % 3 == 0) num_pending.clear();
  }
  num_pending.clear();
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    Tensor back = Tensor::empty({kCount}, DType::I32, *device_);
    copies_->to_device(*rooms[i], back).make_stream_wait();
    EXPECT_EQ(read_values<i32>(back), std::vector<i32>(kCount, static_cast<i32>(i)));
  }
}

TEST_P(AsyncCopyTest, ReuseHostBuffers) {
  const void* first = rooms_->take({1000}, DType::I32)->raw();
  const i64 peak = rooms_->peak();
  for (i32 i = 0; i < 10; ++i) {
    const auto room = rooms_->take({10, 100}, DType::I32);
    EXPECT_EQ(room->raw(), first);
    EXPECT_EQ(room->shape(), (Shape{10, 100}));
  }
  EXPECT_EQ(rooms_->peak(), peak);
}

TEST_P(AsyncCopyTest, AcceptEmptyTensors) {
  const auto room = rooms_->take({0}, DType::F32);
  const Tensor none = Tensor::empty({0}, DType::F32, *device_);
  copies_->to_host(none, *room).wait();
  copies_->to_device(*room, none).make_stream_wait();
  AsyncCopy().wait();
}

TEST(PinnedTensorTest, OccupiesWholePages) {
  CpuDevice host;
  LazyCopies copies(host);  // checks that pages are not shared
  std::vector<PinnedTensor> all;
  for (const i64 count : {1, 7, 1024, 4097, 100000, 1 << 20})
    for (const DType dtype : {DType::BF16, DType::F64, DType::I32}) {
      all.push_back(pinned_tensor({count}, dtype, host, MemoryClass::Other, copies));
      EXPECT_EQ(all.back().tensor.numel(), count);
    }
  all.erase(all.begin() + 3, all.begin() + 9);
  for (int i = 0; i < 6; ++i) all.push_back(pinned_tensor({4097}, DType::F32, host, MemoryClass::Other, copies));
}

}  // namespace
}  // namespace mcpp::test
