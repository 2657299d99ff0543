// Captures record operations, graphs replay them, and captures fail where captures of CUDA fail.
#include <gmock/gmock.h>

#include <thread>

#include "base/check.h"
#include "tests/cuda_simulator/tests/defects.h"
#include "tests/cuda_simulator/tests/simulator_fixture.h"

namespace mcpp::test {
namespace {

using cuda_simulator::Policy;
using cuda_simulator::settings;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class SimulatorGraphTest : public SimulatorTest {
 protected:
  ~SimulatorGraphTest() override {
    for (const cudaGraphExec_t exec : executables_) cudaGraphExecDestroy(exec);
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(first_, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(first_, &graph);
    EXPECT_EQ(graph == nullptr, error != cudaSuccess);
    if (graph) {
      EXPECT_EQ(cudaGraphInstantiate(&executables_.emplace_back(), graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
    }
    cudaGetLastError();
    return error;
  }
  void launch(cudaStream_t stream) { ASSERT_EQ(cudaGraphLaunch(executables_.back(), stream), cudaSuccess); }

  /// Captures a = 1 on the first stream and b = sum of a on the second, with or without a wait for a.
  void capture_on_both_streams(bool waits) {
    cudaEvent_t forked = nullptr, filled = nullptr, joined = nullptr;
    for (cudaEvent_t* event : {&forked, &filled, &joined}) cudaEventCreateWithFlags(event, cudaEventDisableTiming);
    begin();
    cudaEventRecord(forked, first_);
    launch_fill(a_, kCount, 1, first_);
    cudaEventRecord(filled, first_);
    cudaStreamWaitEvent(second_, waits ? filled : forked, 0);
    launch_sum(a_, kCount, b_, second_);
    cudaEventRecord(joined, second_);
    cudaStreamWaitEvent(first_, joined, 0);
    EXPECT_EQ(end(), cudaSuccess);
    for (const cudaEvent_t event : {forked, filled, joined}) cudaEventDestroy(event);
  }

  std::vector<cudaGraphExec_t> executables_;
};

TEST_F(SimulatorGraphTest, RunsOnlyWhenLaunched) {
  begin();
  cudaStreamCaptureStatus status{};
  cudaStreamIsCapturing(first_, &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  launch_sum(a_, kCount, b_, first_);
  launch_fill(a_, kCount, 2, first_);
  EXPECT_EQ(end(), cudaSuccess);
  cudaStreamIsCapturing(first_, &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(value(a_), 0);
  launch(first_);
  EXPECT_EQ(value(a_), 2);
  EXPECT_EQ(value(b_), 0);
  launch(first_);
  EXPECT_EQ(value(b_), 2 * kCount) << "a launch reads the current values";
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(SimulatorGraphTest, CountsOneCallPerLaunch) {
  begin();
  for (int i = 0; i < 3; ++i) launch_fill(a_, kCount, 2, first_);
  EXPECT_EQ(end(), cudaSuccess);
  cuda_simulator::host_calls().clear();
  launch(first_);
  launch_fill(b_, kCount, 2, first_);
  EXPECT_EQ(cuda_simulator::host_calls(),
            (std::map<std::string, std::uint64_t>{{"cudaGraphLaunch", 1}, {"kernel", 1}}));
}

TEST_F(SimulatorGraphTest, OrdersJoinedStreamsUnderAnyPolicy) {
  for (const Policy policy : {Policy::Late, Policy::Eager, Policy::Reverse, Policy::Random, Policy::Pct}) {
    settings().policy = policy;
    for (const bool waits : {true, false}) {
      capture_on_both_streams(waits);
      for (int i = 0; i < 3; ++i) launch(first_);
      if (waits) {
        EXPECT_EQ(value(b_), kCount);
        EXPECT_THAT(finish(), IsEmpty());
      } else {
        EXPECT_THAT(finish(), Contains(HasSubstr("no event orders them")));
      }
    }
  }
}

TEST_F(SimulatorGraphTest, ReportsUnorderedAccessAfterLaunch) {
  begin();
  launch_fill(a_, kCount, 1, first_);
  EXPECT_EQ(end(), cudaSuccess);
  launch(first_);
  launch_sum(a_, kCount, b_, second_);
  EXPECT_THAT(finish(), Contains(HasSubstr("no event orders them")));
}

TEST_F(SimulatorGraphTest, OrdersLaunchesOfOneGraphOnTwoStreams) {
  begin();
  launch_fill(a_, kCount, 1, first_);
  EXPECT_EQ(end(), cudaSuccess);
  launch(first_);
  launch(second_);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(SimulatorGraphTest, ReportsMemoryFreedSinceCapture) {
  void* memory = nullptr;
  cudaMallocAsync(&memory, kBytes, first_);
  begin();
  launch_fill(static_cast<float*>(memory), kCount, 1, first_);
  EXPECT_EQ(end(), cudaSuccess);
  launch(first_);
  EXPECT_THAT(finish(), IsEmpty());
  cudaFreeAsync(memory, first_);
  launch(first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("outside of any allocation")));
}

TEST_F(SimulatorGraphTest, ReportsMemoryReusedSinceCapture) {
  constexpr std::size_t kUncommonBytes = kBytes + 5000;  // no other test has freed such memory
  void *memory = nullptr, *other = nullptr;
  cudaMallocAsync(&memory, kUncommonBytes, first_);
  begin();
  launch_fill(static_cast<float*>(memory), kCount, 1, first_);
  EXPECT_EQ(end(), cudaSuccess);
  cudaFreeAsync(memory, first_);
  cudaStreamSynchronize(first_);
  cudaMallocAsync(&other, kUncommonBytes, first_);
  ASSERT_EQ(memory, other);
  launch(first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("allocated after the graph had been captured")));
  cudaFreeAsync(other, first_);
}

TEST_F(SimulatorGraphTest, RejectsWaitsDuringCapture) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  begin();
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  cudaEventRecord(event, first_);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  cudaEventRecord(event, first_);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  cudaEventDestroy(event);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(SimulatorGraphTest, RejectsUnsafeCallsOfCapturingThread) {
  void* memory = nullptr;
  begin();
  EXPECT_EQ((cudaMallocHost)(&memory, kBytes), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ((cudaMallocHost)(&memory, kBytes), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  cudaFreeHost(memory);
  float on_stack = 0;
  begin();
  EXPECT_EQ(cudaMemcpyAsync(a_, &on_stack, sizeof(on_stack), cudaMemcpyHostToDevice, first_),
            cudaErrorStreamCaptureUnsupported)
      << "pageable memory";
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(SimulatorGraphTest, RejectsUnsafeCallsOfOtherThreadsOnlyInGlobalMode) {
  const auto allocate_in_other_thread = [] {
    cudaError_t result = cudaSuccess;
    std::thread([&] {
      void* memory = nullptr;
      result = (cudaMallocHost)(&memory, kBytes);
      if (memory) cudaFreeHost(memory);
    }).join();
    return result;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate_in_other_thread(), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(allocate_in_other_thread(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(SimulatorGraphTest, RejectsWaitAndEndOnOtherThreads) {
  cudaError_t waited = cudaSuccess, ended = cudaSuccess;
  begin();
  std::thread([&] { waited = cudaStreamSynchronize(first_); }).join();
  EXPECT_EQ(waited, cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  std::thread([&] {
    cudaGraph_t graph = nullptr;
    ended = cudaStreamEndCapture(first_, &graph);
  }).join();
  EXPECT_EQ(ended, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(SimulatorGraphTest, RejectsWaitForEventOutsideOfCapture) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, second_);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(first_, event, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  cudaEventDestroy(event);
}

TEST_F(SimulatorGraphTest, RejectsUnjoinedStream) {
  begin();
  order(first_, second_);
  launch_fill(a_, kCount, 1, second_);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  launch_fill(a_, kCount, 1, second_);
  EXPECT_THAT(finish(), IsEmpty()) << "the stream no longer captures";
}

TEST_F(SimulatorGraphTest, RejectsEndOnJoinedStream) {
  begin();
  order(first_, second_);
  order(second_, first_);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorIllegalState);
}

TEST_F(SimulatorGraphTest, RejectsUseOfDefaultStream) {
  begin();
  EXPECT_THROW(launch_fill(b_, kCount, 1, nullptr), Error);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(SimulatorGraphTest, RejectsFirstLaunchThatLoadsKernel) {
  settings().late_loading = true;
  begin();
  EXPECT_THROW(launch_unloaded(a_, first_), Error);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(SimulatorGraphTest, ReportsAllocationDuringCapture) {
  void* memory = nullptr;
  begin();
  EXPECT_EQ(cudaMallocAsync(&memory, kBytes, first_), cudaErrorNotSupported);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_THAT(finish(), Contains(HasSubstr("cudaMallocAsync")));
}

TEST_F(SimulatorGraphTest, InjectedFaultsFailInstantiationAndLaunch) {
  begin();
  launch_fill(a_, kCount, 1, first_);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(first_, &graph), cudaSuccess);
  inject("cudaGraphInstantiate", 1);
  cudaGraphExec_t exec = nullptr;
  EXPECT_NE(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(exec, nullptr);
  inject("cudaGraphLaunch", 1);
  EXPECT_EQ(cudaGraphInstantiate(&executables_.emplace_back(), graph, 0), cudaSuccess);
  EXPECT_NE(cudaGraphLaunch(executables_.back(), first_), cudaSuccess);
  inject("", 0);
  cudaGraphDestroy(graph);
}

}  // namespace
}  // namespace mcpp::test
