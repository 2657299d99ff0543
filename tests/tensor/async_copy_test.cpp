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
    buffers_ = std::make_unique<PinnedBufferPool>(*copies_, MemoryClass::Other);
  }
  Tensor filled(i64 count, i32 value) {
    return integers_of(std::vector<i32>(static_cast<std::size_t>(count), value), *device_);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<PinnedBufferPool> buffers_;
  std::unique_ptr<AsyncCopyEngine> copies_;
};

INSTANTIATE_TEST_SUITE_P(Devices, AsyncCopyTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(AsyncCopyTest, CopiesResultsOfEarlierOps) {
  constexpr i64 kCount = 4 << 20;
  for (i32 round = 1; round < 5; ++round) {
    Tensor x = random_tensor({kCount}, DType::F32, *device_, 1, 1, 0),
           sum = random_tensor({kCount}, DType::F32, *device_, 2);
    for (i32 i = 0; i < round; ++i) ops::add_to(x, sum);
    const auto buffer = buffers_->take({kCount}, DType::F32);
    AsyncCopy out = copies_->to_host(sum, *buffer);
    const Tensor expected = sum;
    out.wait();
    EXPECT_EQ(std::memcmp(buffer->raw(), bytes_of(expected).data(), static_cast<std::size_t>(expected.bytes())), 0);
  }
}

TEST_P(AsyncCopyTest, LaterOpsWaitForCopy) {
  constexpr i64 kCount = 4 << 20;
  for (i32 round = 0; round < 10; ++round) {
    Tensor source = filled(kCount, round);
    const auto buffer = buffers_->take({kCount}, DType::I32);
    AsyncCopy out = copies_->to_host(source, *buffer);
    out.make_stream_wait();
    write_values(std::vector<i32>(kCount, -1), source);  // after the copy
    Tensor loaded = Tensor::like(source);
    AsyncCopy in = copies_->to_device(*buffer, loaded);
    in.make_stream_wait();
    EXPECT_EQ(read_values<i32>(loaded), std::vector<i32>(kCount, round));
    EXPECT_EQ(read_values<i32>(source), std::vector<i32>(kCount, -1));
  }
}

// Tensors (for instance activations) are released while their copy is in flight, and their memory is reused.
TEST_P(AsyncCopyTest, KeepsReleasedMemoryUntilDone) {
  constexpr i64 kCount = 1 << 20;
  std::vector<std::shared_ptr<const Tensor>> buffers;
  std::vector<AsyncCopy> pending;
  for (i32 i = 0; i < 20; ++i) {
    buffers.push_back(buffers_->take({kCount}, DType::I32));
    pending.push_back(copies_->to_host(filled(kCount, i), *buffers.back()));
    if (i % 3 == 0) pending.clear();
  }
  pending.clear();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    Tensor loaded = Tensor::empty({kCount}, DType::I32, *device_);
    copies_->to_device(*buffers[i], loaded).make_stream_wait();
    EXPECT_EQ(read_values<i32>(loaded), std::vector<i32>(kCount, static_cast<i32>(i)));
  }
}

TEST_P(AsyncCopyTest, ReusesHostBuffers) {
  const void* first = buffers_->take({1000}, DType::I32)->raw();
  const i64 peak = buffers_->peak();
  for (i32 i = 0; i < 10; ++i) {
    const auto buffer = buffers_->take({10, 100}, DType::I32);
    EXPECT_EQ(buffer->raw(), first);
    EXPECT_EQ(buffer->shape(), (Shape{10, 100}));
  }
  EXPECT_EQ(buffers_->peak(), peak);
}

TEST_P(AsyncCopyTest, AcceptsEmptyTensors) {
  const auto buffer = buffers_->take({0}, DType::F32);
  const Tensor none = Tensor::empty({0}, DType::F32, *device_);
  copies_->to_host(none, *buffer).wait();
  copies_->to_device(*buffer, none).make_stream_wait();
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
