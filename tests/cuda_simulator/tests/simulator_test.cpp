// The simulator reports every injected defect, and has no false positives.
#include "tests/cuda_simulator/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
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

using SimulatorKernelTest = SimulatorTest;
using SimulatorStreamTest = SimulatorTest;
using SimulatorNcclTest = SimulatorTest;
using SimulatorFaultTest = SimulatorTest;

TEST_F(SimulatorKernelTest, ReportsMissingBarrier) {
  launch_reverse(a_, b_, true, first_);
  EXPECT_THAT(finish(), IsEmpty());
  settings().checks_races = false;
  launch_reverse(a_, b_, false, first_);
  EXPECT_THAT(finish(), IsEmpty()) << "the check is off";
  settings().checks_races = true;
  launch_reverse(a_, b_, false, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("no barrier orders them")));
}

TEST_F(SimulatorKernelTest, ReportsBarrierWithoutAllThreads) {
  launch_sum_after_return(a_, kCount, first_);
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_EQ(value(a_), kCount * (kCount - 1) / 2);
  launch_sum_after_return(a_, kCount - 1, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("__syncthreads()")));
}

TEST_F(SimulatorKernelTest, ReportsMasksThatDisagree) {
  launch_ballot(reinterpret_cast<unsigned*>(a_), true, first_);
  EXPECT_THAT(finish(), IsEmpty());
  launch_ballot(reinterpret_cast<unsigned*>(a_), false, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("different masks")));
}

TEST_F(SimulatorKernelTest, ReportsAccessOutsideOfAllocation) {
  launch_fill(a_, kCount, 1, first_);
  EXPECT_THAT(finish(), IsEmpty());
  launch_fill(a_, kCount + 1, 1, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("outside of any allocation")));
}

TEST_F(SimulatorKernelTest, ReportsMisalignedVector) {
  launch_vector_store(a_ + 4, first_);
  EXPECT_THAT(finish(), IsEmpty());
  launch_vector_store(a_ + 1, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("not a multiple of it")));
}

TEST_F(SimulatorKernelTest, FillsSharedMemoryWithNan) {
  launch_copy_shared(a_, first_);
  EXPECT_TRUE(std::isnan(value(a_)));
}

TEST_F(SimulatorKernelTest, RejectsLaunchesBeyondLimits) {
  constexpr int kMore = 64 << 10;
  launch_with_shared(48 << 10, 0, first_);
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_THROW(launch_with_shared(kMore, 0, first_), Error);
  EXPECT_THAT(finish(), Contains(HasSubstr("shared memory")));
  launch_with_shared(kMore, kMore, first_);
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_THROW(launch_empty_grid(a_, first_), Error);
  EXPECT_THAT(finish(), Contains(HasSubstr("the grid is empty")));
}

TEST_F(SimulatorKernelTest, ReportsIndicesBeyond32Bits) {
  auto* const to = reinterpret_cast<long long*>(a_);
  constexpr int kHalf = 1 << 16;
  constexpr unsigned kLargest = 4'294'967'295u;
  launch_multiply_signed(kHalf / 2, kHalf - 1, to, first_);
  launch_multiply_index(2, kLargest, to, first_);
  launch_narrow_index(kLargest / 2, to, first_);
  EXPECT_THAT(finish(), IsEmpty());
  launch_multiply_signed(kHalf / 2, kHalf, to, first_);
  EXPECT_THAT(finish(), Contains(testing::AllOf(HasSubstr("a product overflows"), HasSubstr("defects.cu:"))));
  launch_multiply_index(3, kLargest, to, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("an index of 8589934590 does not fit in unsigned")));
  launch_narrow_index(kLargest / 2 + 1, to, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("an index of 2147483648 does not fit in int")));
}

TEST_F(SimulatorStreamTest, ReportsUseBeforeWaitUnderAnyPolicy) {
  for (const Policy policy : {Policy::Late, Policy::Eager, Policy::Reverse, Policy::Random, Policy::Pct}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(policy) << ", seed " << seed);
      settings().policy = policy;
      settings().seed = seed;
      cuda_simulator::reseed();
      launch_fill(a_, kCount, 1, first_);
      order(first_, second_);
      launch_sum(a_, kCount, b_, second_);
      order(second_, first_);
      EXPECT_THAT(finish(), IsEmpty());
      EXPECT_EQ(value(b_), kCount);
    }
  }
  launch_fill(a_, kCount, 2, first_);
  launch_sum(a_, kCount, b_, second_);
  EXPECT_THAT(finish(), Contains(HasSubstr("no event orders them")));
}

TEST_F(SimulatorStreamTest, ReportsReuseWhileAnotherStreamReads) {
  launch_fill(a_, kCount, 1, first_);
  order(first_, second_);
  launch_sum(a_, kCount, b_, second_);
  launch_fill(a_, kCount, 3, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("no event orders them")));
}

TEST_F(SimulatorStreamTest, ReportsUseOfFreedMemory) {
  void* memory = nullptr;
  cudaMallocAsync(&memory, kBytes, first_);
  cudaFreeAsync(memory, first_);
  launch_fill(static_cast<float*>(memory), kCount, 1, first_);
  EXPECT_THAT(finish(), Contains(HasSubstr("outside of any allocation")));
}

TEST_F(SimulatorStreamTest, ReportsPinnedMemoryModifiedInFlight) {
  cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, first_);
  cudaStreamSynchronize(first_);
  pinned_[3] = 5;
  EXPECT_THAT(finish(), IsEmpty());
  cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyHostToDevice, first_);
  pinned_[3] = 6;
  EXPECT_THAT(finish(), Contains(HasSubstr("pinned memory was modified")));
}

TEST_F(SimulatorStreamTest, HostThatReadsTooEarlySeesNan) {
  launch_fill(a_, kCount, 1, first_);
  cudaMemcpyAsync(pinned_, a_, kBytes, cudaMemcpyDeviceToHost, first_);
  EXPECT_TRUE(std::isnan(pinned_[0]));
  EXPECT_THAT(finish(), IsEmpty());
  EXPECT_EQ(pinned_[0], 1);
}

TEST_F(SimulatorStreamTest, ReportsWaitForUnrecordedEvent) {
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaStreamWaitEvent(first_, event, 0);
  cudaEventDestroy(event);
  EXPECT_THAT(finish(), Contains(HasSubstr("never recorded")));
}

TEST_F(SimulatorStreamTest, ReportsWorkOnDestroyedStream) {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  launch_fill(a_, kCount, 1, stream);
  cudaStreamDestroy(stream);
  EXPECT_THAT(finish(), Contains(HasSubstr("cudaStreamDestroy")));
}

TEST_F(SimulatorStreamTest, ReportsWrongKindOfCopy) {
  cudaMemcpyAsync(a_, pinned_, kBytes, cudaMemcpyDeviceToDevice, first_);
  cudaGetLastError();
  EXPECT_THAT(finish(), Contains(HasSubstr("kind")));
}

TEST_F(SimulatorFaultTest, FailsOnlySelectedCall) {
  inject("cudaMallocAsync", 2);
  std::array<void*, 3> data{};
  EXPECT_EQ(cudaMallocAsync(&data[0], kBytes, first_), cudaSuccess);
  EXPECT_EQ(cudaMallocAsync(&data[1], kBytes, first_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMallocAsync(&data[2], kBytes, first_), cudaSuccess);
  for (void* allocated : data) cudaFreeAsync(allocated, first_);
  EXPECT_THAT(finish(), IsEmpty());
}

TEST_F(SimulatorFaultTest, FailedKernelFailsAllLaterCalls) {
  inject("kernel", 2);
  launch_fill(a_, kCount, 1, first_);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  launch_fill(a_, kCount, 1, first_);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaErrorIllegalAddress);
  EXPECT_THROW(launch_fill(a_, kCount, 1, second_), Error);
  inject("", 0);
}

TEST_F(SimulatorFaultTest, FlipsOneBitOfMemoryDuringSelectedKernel) {
  settings().checks_races = false;
  inject("memory", 2);
  launch_fill(a_, kCount, 0, first_);
  cudaStreamSynchronize(first_);
  int flipped = 0;
  const auto count = [&] {
    flipped = 0;
    for (const float* data : {a_, b_}) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(data);
      for (std::size_t i = 0; i < kBytes; ++i) flipped += std::popcount(bytes[i]);
    }
    return flipped;
  };
  EXPECT_EQ(count(), 0);
  launch_sum(a_, 0, a_, first_);
  cudaStreamSynchronize(first_);
  EXPECT_EQ(count(), 1);
  inject("", 0);
}

TEST_F(SimulatorFaultTest, EventThatNeverCompletesHoldsItsStream) {
  settings().patience = 1;
  inject("event", 1);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, 0);
  cudaEventRecord(event, first_);
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  cudaGetLastError();
  cudaEventSynchronize(event);
  EXPECT_THAT(std::exchange(reports_, {}), Contains(HasSubstr("deadlock")));
  cudaEventDestroy(event);
  inject("", 0);
  EXPECT_THAT(finish(), IsEmpty());
}

/// Runs body(rank, communicator, stream, data) on two threads with a GPU each. The body may abort and reset the
/// communicator.
void run_two_ranks(const std::function<void(int, ncclComm_t&, cudaStream_t, float*)>& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  const auto run = [&](int rank) {
    cudaSetDevice(rank);
    cudaStream_t stream = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    void* data = nullptr;
    cudaMallocAsync(&data, kBytes, stream);
    launch_fill(static_cast<float*>(data), kCount, static_cast<float>(rank + 1), stream);
    ncclComm_t comm = nullptr;
    ncclCommInitRank(&comm, 2, id, rank);
    body(rank, comm, stream, static_cast<float*>(data));
    cudaStreamSynchronize(stream);
    if (comm) ncclCommAbort(comm);
    cudaFreeAsync(data, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  };
  std::thread other(run, 1);
  std::thread(run, 0).join();
  other.join();
}

TEST_F(SimulatorNcclTest, SumsOverRanks) {
  std::array<float, 2> sums{};
  run_two_ranks([&](int rank, ncclComm_t& comm, cudaStream_t stream, float* data) {
    ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream);
    cudaMemcpyAsync(&sums[static_cast<std::size_t>(rank)], data, sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
  });
  EXPECT_THAT(reports_, IsEmpty());
  EXPECT_THAT(sums, testing::Each(3));
}

TEST_F(SimulatorNcclTest, ReportsCountsThatDiffer) {
  run_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream, float* data) {
    ncclAllReduce(data, data, static_cast<std::size_t>(kCount - rank), ncclFloat32, ncclSum, comm, stream);
  });
  EXPECT_THAT(finish(), Contains(testing::AllOf(HasSubstr("differs between ranks"), HasSubstr("64"), HasSubstr("63"))));
}

TEST_F(SimulatorNcclTest, ReportsMessagesOfDifferentSizes) {
  run_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream, float* data) {
    if (rank == 0)
      ncclSend(data, kCount, ncclFloat32, 1, comm, stream);
    else
      ncclRecv(data, kCount / 2, ncclFloat32, 0, comm, stream);
  });
  EXPECT_THAT(finish(), Contains(HasSubstr("rank 0 sends 64 elements of type 7 to rank 1, which receives 32")));
}

TEST_F(SimulatorNcclTest, ReportsDeadlockWithOperationsOfAllRanks) {
  run_two_ranks([](int rank, ncclComm_t comm, cudaStream_t stream, float* data) {
    if (rank == 0)
      ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream);
    else
      ncclRecv(data, kCount, ncclFloat32, 0, comm, stream);
  });
  EXPECT_THAT(reports_, Contains(testing::AllOf(HasSubstr("deadlock"), HasSubstr("ncclAllReduce (operation 0, rank 0"),
                                                HasSubstr("receive 64 from 0"))));
}

TEST_F(SimulatorFaultTest, FailedCollectiveIsAnAsynchronousErrorOnAllRanks) {
  inject("nccl", 1);
  std::array<ncclResult_t, 2> errors{};
  run_two_ranks([&](int rank, ncclComm_t& comm, cudaStream_t stream, float* data) {
    ncclAllReduce(data, data, kCount, ncclFloat32, ncclSum, comm, stream);
    while (errors[static_cast<std::size_t>(rank)] == ncclSuccess)
      ncclCommGetAsyncError(comm, &errors[static_cast<std::size_t>(rank)]);
    ncclCommAbort(std::exchange(comm, nullptr));
  });
  inject("", 0);
  EXPECT_THAT(errors, testing::Each(ncclRemoteError));
}

}  // namespace
}  // namespace mcpp::test
