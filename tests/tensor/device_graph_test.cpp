// Work recorded in a device graph.
#include "tensor/device_graph.h"

#include <gtest/gtest.h>

#include <thread>

#include "tensor/ops/ops.h"
#include "tensor/transfer.h"
#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test::device_graph_test {
namespace {

class DeviceGraphTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_device(GetParam());
    sum_ = tensor_of({0, 0}, {2}, DType::F32, *device_);
    x_ = tensor_of({1, 2}, {2}, DType::F32, *device_);
  }
  Device& device() { return *device_; }
  void add() { ops::add_to(x_, sum_); }
  Numbers sum() const { return to_doubles(sum_); }

 private:
  std::unique_ptr<Device> device_;
  Tensor sum_, x_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceGraphTest);
INSTANTIATE_TEST_SUITE_P(Devices, DeviceGraphTest,
                         testing::ValuesIn(built_with_cuda() ? std::vector{DeviceType::Cuda}
                                                             : std::vector<DeviceType>()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(DeviceGraphTest, RunsWorkOnlyWhenLaunched) {
  add();  // loads the kernel
  const auto graph = record_graph(device(), [&] { add(); });
  EXPECT_EQ(graph->size(), 1);
  EXPECT_EQ(sum(), Numbers({1, 2}));
  for (int i = 0; i < 3; ++i) graph->launch();
  EXPECT_EQ(sum(), Numbers({4, 8}));
}

TEST_P(DeviceGraphTest, DeviceIsUsableAfterFailedRecording) {
  add();
  EXPECT_NE(error_of([&] {
              record_graph(device(), [&] {
                add();
                sum();  // waits for the device
              });
            }),
            "");
  add();
  EXPECT_EQ(sum(), Numbers({2, 4}));
  const auto graph = record_graph(device(), [&] { add(); });
  graph->launch();
  EXPECT_EQ(sum(), Numbers({3, 6}));
}

TEST_P(DeviceGraphTest, OtherThreadsCannotQueueWorkDuringRecording) {
  add();
  const auto graph = record_graph(device(), [&] {
    std::thread other(
        [&] { EXPECT_CONTAINS(error_with(ExitCode::Internal, [&] { add(); }), "another thread records a graph"); });
    other.join();
    add();
  });
  EXPECT_EQ(graph->size(), 1);
  EXPECT_EQ(sum(), Numbers({1, 2}));
}

TEST(CpuGraphTest, RejectsRecording) {
  CpuDevice device;
  EXPECT_CONTAINS(error_with(ExitCode::Internal, [&] { record_graph(device, [] {}); }), "cannot record");
}

}  // namespace
}  // namespace mcpp::test::device_graph_test
