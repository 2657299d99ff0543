#include "tensor/host/device_wait_timer.h"

#include <chrono>
#include <thread>

#include "tensor/ops/ops.h"
#include "tests/support/fakes/fake_wait_timer.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

TEST(DeviceWaitTimerTest, CpuWaitIsHostTime) {
  double seconds = 0;
  Profiler profiler;
  profiler.enable_timers(Detail::Microbatch);
  {
    const WaitRange range(seconds, nullptr, &profiler, "wait", RangeKind::Bubble);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(seconds, 0.005);
  EXPECT_EQ(profiler.take_seconds().at("wait"), seconds);
}

TEST(DeviceWaitTimerTest, DeviceWaitIsMeasuredByDevice) {
  FakeWaitTimer waits;
  double seconds = 1;
  { const WaitRange range(seconds, &waits, nullptr, "wait", RangeKind::Bubble); }
  EXPECT_EQ(seconds, 1);
  waits.end_all(0.25);
  { const WaitRange range(seconds, &waits, nullptr, "wait", RangeKind::Bubble); }
  EXPECT_EQ(seconds, 1.25);
}

class DeviceWaitTimerDeviceTest : public testing::TestWithParam<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeviceWaitTimerDeviceTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(DeviceWaitTimerDeviceTest, MeasuresTimeBetweenBeginAndEnd) {
  if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const std::unique_ptr<Device> gpu = make_device(GetParam());
  const std::unique_ptr<DeviceWaitTimer> waits = make_device_wait_timer(*gpu);
  EXPECT_EQ(waits == nullptr, GetParam() == DeviceType::Cpu) << "which waits as the host does";
  if (!waits) return;
  const Tensor x = random_tensor({16 << 20}, DType::F32, *gpu, 1, 1, 0);
  Tensor sum = random_tensor({16 << 20}, DType::F32, *gpu, 2, 1, 0);
  const auto work = [&] {
    for (int i = 0; i < 100; ++i) ops::add_to(x, sum);
  };
  const auto finish = [&] { read_values<float>(sum.flat(0, 1)); };
  work(), finish();  // loads kernels lazily
  waits->begin();
  waits->end();
  finish();
  const double nothing = waits->take_seconds();
  const auto start = std::chrono::steady_clock::now();
  waits->begin();
  work();
  waits->end();
  const double at_once = waits->take_seconds();
  finish();
  const double waited = at_once + waits->take_seconds();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  work();  // work before a wait does not count
  waits->begin();
  waits->end();
  finish();
  EXPECT_LT(nothing, 1e-3);
  EXPECT_GT(waited, 0.5 * elapsed);
  EXPECT_LE(waited, elapsed);
  EXPECT_LT(waits->take_seconds(), 0.1 * waited);
}

}  // namespace
}  // namespace mcpp::test
