// Traffic between node leaders. The suite in communicator_test.cpp checks the results.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/mpi/transport/mpi_window.h"
#include "tests/comm_mpi/session.h"

namespace {

/// Bytes that this process passed to MPI for other ranks, counted through MPI's profiling interface: the definitions of
/// this program take precedence over the library's, which remain available as PMPI_*.
long long sent_bytes = 0, broadcast_bytes = 0;
/// Part of these bytes that went to a different node, for nodes of ranks_of_a_node ranks.
long long far_bytes = 0;
int ranks_of_a_node = 1;
/// Address of the last message of this size.
constexpr long long kLargeBytes = 8 << 20;
std::atomic<const void*> large_data = nullptr;

}  // namespace

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  sent_bytes += static_cast<long long>(count) * size;
  if (static_cast<long long>(count) * size == kLargeBytes) large_data = data;
  int ranks = 0, me = 0, all = 0;
  PMPI_Comm_size(comm, &ranks);
  PMPI_Comm_rank(comm, &me);
  PMPI_Comm_size(MPI_COMM_WORLD, &all);
  if (ranks == all && to / ranks_of_a_node != me / ranks_of_a_node) far_bytes += static_cast<long long>(count) * size;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

extern "C" int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  broadcast_bytes += static_cast<long long>(count) * size;
  return PMPI_Ibcast(data, count, type, root, comm, request);
}

namespace mcpp::test {
namespace {

/// For N bytes, partial sums go from node to node, and the last node sends each node only the part of its ranks: for n
/// nodes of equal size (n - 1) N (1 + 1 / n). If every node has one rank, each rank sends each other rank its part, (n
/// - 1) N in all. Nothing is broadcast.
TEST(InterNodeTest, ReduceScatterSendsEachNodeOnlyItsSums) {
  const int ranks = session().size();
  for (const int of_node : {1, 2}) {
    if (ranks % of_node != 0 || ranks == of_node) continue;
    const auto world = session().make_world([&](int rank) { return rank / of_node; });
    CpuDevice device;
    // Larger than the window, so that there are several segments, the last one shorter.
    const i64 part = SharedWindow::kSlotBytes / 4 + 12345, n = ranks / of_node;
    const Tensor full = Tensor::zeros({part * ranks}, DType::F32, device, MemoryClass::Other);
    Tensor own = Tensor::zeros({part}, DType::F32, device, MemoryClass::Other);
    world->barrier();
    sent_bytes = broadcast_bytes = 0;
    world->reduce_scatter(full, own).wait();
    Tensor counted = Tensor::zeros({2}, DType::I64, device, MemoryClass::Other);
    counted.data<i64>()[0] = sent_bytes, counted.data<i64>()[1] = broadcast_bytes;
    world->all_reduce(counted, ReduceOp::Sum).wait();
    EXPECT_EQ(counted.data<i64>()[0], (n - 1) * full.bytes() + (of_node == 1 ? 0 : (n - 1) * full.bytes() / n));
    EXPECT_EQ(counted.data<i64>()[1], 0);
  }
}

/// Partial sums go from the first node to the last, and sums from the last to the first: 2 (n - 1) N, as between nodes
/// with a single rank.
TEST(InterNodeTest, AllReduceSendsSumsToEachNodeOnce) {
  const int ranks = session().size();
  for (const int of_node : {1, 2}) {
    if (ranks % of_node != 0 || ranks == of_node) continue;
    const auto world = session().make_world([&](int rank) { return rank / of_node; });
    CpuDevice device;
    const i64 count = 512 * i64{ranks} * 1025;  // several segments, and equal parts
    Tensor t = Tensor::zeros({count}, DType::F32, device, MemoryClass::Other);
    world->barrier();
    sent_bytes = broadcast_bytes = 0;
    world->all_reduce(t, ReduceOp::Sum).wait();
    Tensor counted = Tensor::zeros({2}, DType::I64, device, MemoryClass::Other);
    counted.data<i64>()[0] = sent_bytes, counted.data<i64>()[1] = broadcast_bytes;
    world->all_reduce(counted, ReduceOp::Sum).wait();
    EXPECT_EQ(counted.data<i64>()[0], 2 * (ranks / of_node - 1) * t.bytes());
    EXPECT_EQ(counted.data<i64>()[1], 0);
  }
}

/// The node of the root receives the bytes from the root, and every other node receives them once, for any root.
TEST(InterNodeTest, BroadcastSendsBytesToEachNodeOnce) {
  const int ranks = session().size();
  for (const int of_node : {1, 2}) {
    if (ranks % of_node != 0 || ranks == of_node) continue;
    const auto world = session().make_world([&](int rank) { return rank / of_node; });
    CpuDevice device;
    for (const int root : {0, ranks - 1}) {
      const i64 count = 700'001;  // several chunks, the last one shorter
      Tensor t = Tensor::zeros({count}, DType::F32, device, MemoryClass::Other);
      if (world->rank() == root) std::iota(t.data<float>(), t.data<float>() + count, 0.F);
      world->barrier();
      far_bytes = 0, ranks_of_a_node = of_node;
      world->broadcast(t, root).wait();
      for (i64 i = 0; i < count; ++i) ASSERT_EQ(t.data<float>()[i], static_cast<float>(i)) << i;
      Tensor counted = Tensor::zeros({1}, DType::I64, device, MemoryClass::Other);
      counted.data<i64>()[0] = far_bytes;
      world->all_reduce(counted, ReduceOp::Sum).wait();
      EXPECT_EQ(counted.data<i64>()[0], (ranks / of_node - 1) * t.bytes());
    }
  }
}

/// The parts of all ranks are sent to each of n nodes once, for any number of ranks per node: (n - 1) N.
TEST(InterNodeTest, AllGatherSendsEachPartToEachNodeOnce) {
  const int ranks = session().size();
  for (const int of_node : {1, 2}) {
    if (ranks % of_node != 0 || ranks == of_node) continue;
    const auto world = session().make_world([&](int rank) { return rank / of_node; });
    CpuDevice device;
    const i64 part = 700'001, n = ranks / of_node;  // several chunks, the last one shorter
    const Tensor own = Tensor::zeros({part}, DType::F32, device, MemoryClass::Other);
    Tensor full = Tensor::zeros({part * ranks}, DType::F32, device, MemoryClass::Other);
    world->barrier();
    far_bytes = 0, ranks_of_a_node = of_node;
    world->all_gather(own, full).wait();
    Tensor counted = Tensor::zeros({1}, DType::I64, device, MemoryClass::Other);
    counted.data<i64>()[0] = far_bytes;
    world->all_reduce(counted, ReduceOp::Sum).wait();
    EXPECT_EQ(counted.data<i64>()[0], (n - 1) * full.bytes());
  }
}

/// Covers many segments on nodes that forward data from one neighbor to the next.
TEST(InterNodeTest, ManySegmentSumsArriveInOrder) {
  const auto world = session().make_world([](int rank) { return std::max(rank - 1, 0); });
  CpuDevice device;
  const i64 count = SharedWindow::kSlotBytes + 777;  // the last segment is short
  for (int round = 0; round < 5; ++round) {
    Tensor t = Tensor::empty({count}, DType::F32, device);
    for (i64 i = 0; i < count; ++i) t.data<float>()[i] = static_cast<float>(i % 4099 + round);
    world->all_reduce(t, ReduceOp::Sum).wait();
    const auto ranks = static_cast<float>(session().size());
    for (i64 i = 0; i < count; ++i) ASSERT_EQ(t.data<float>()[i], ranks * static_cast<float>(i % 4099 + round)) << i;
  }
}

/// A message that its receiver requested leaves directly from the tensor while the sender computes and makes no calls.
/// Two messages check that they are not confused.
TEST(InterNodeTest, RequestedMessagesLeaveDirectlyFromTensors) {
  using namespace std::chrono_literals;
  const auto world = session().make_world([](int rank) { return rank; });
  CpuDevice device;
  const int me = world->rank();
  constexpr i64 kCount = kLargeBytes / sizeof(double);
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (const double value : {3., 5.}) {
    tensors.push_back(Tensor::empty({kCount}, DType::F64, device));
    std::fill_n(tensors.back().data<double>(), kCount, me == 0 ? value : 0);
    if (me == 0) works.push_back(world->send(tensors.back(), 1));
  }
  world->barrier();
  if (me == 1) std::this_thread::sleep_for(20ms);  // the other rank makes no more calls
  const auto end = std::chrono::steady_clock::now() + 20s;
  for (Tensor& t : tensors) {
    if (me == 1) works.push_back(world->recv(t, 0));
    const volatile double& last = t.data<double>()[kCount - 1];
    const auto has_left = [&] { return me == 0 ? large_data == t.raw() : last != 0; };
    while (me < 2 && !has_left() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(100us);
    EXPECT_TRUE(me > 1 || has_left());
  }
  for (Work& work : works) work.wait();
  for (i64 i = 0; me < 2 && i < kCount; ++i) {
    ASSERT_EQ(tensors[0].data<double>()[i], 3) << i;
    ASSERT_EQ(tensors[1].data<double>()[i], 5) << i;
  }
}

}  // namespace
}  // namespace mcpp::test
