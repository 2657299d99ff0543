// Progress of communication between nodes while ranks do other work. The suite in communicator_test.cpp checks the
// results.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/comm_mpi/session.h"

namespace mcpp::test {
namespace {

using namespace std::chrono_literals;

constexpr i64 kCount = i64{1} << 20;

std::unique_ptr<Communicator> world_of_nodes() {
  return session().make_world([](int rank) { return rank; });
}

Tensor filled(double value, Device& device) {
  Tensor t = Tensor::empty({kCount}, DType::F64, device);
  std::fill_n(t.data<double>(), kCount, value);
  return t;
}

/// Rank 1 starts each collective only after a message from rank 0, which has started it by then.
TEST(MpiProgressTest, CollectivesStartWithoutWaitingForPeers) {
  const auto world = world_of_nodes();
  CpuDevice device;
  const int ranks = world->size(), me = world->rank();
  Tensor word = filled(0, device), sum = filled(me + 1, device),
         part = Tensor::empty({kCount / ranks}, DType::F64, device);
  const Tensor full = filled(me + 1, device).flat(0, kCount / ranks * ranks);
  Tensor all = Tensor::empty({kCount * ranks}, DType::F64, device);
  const auto in_turn = [&](const std::function<Work()>& start) {
    if (me == 1) world->recv(word, 0).wait();
    Work work = start();
    if (me == 0) world->send(word, 1).wait();
    work.wait();
  };
  in_turn([&] { return world->all_reduce(sum, ReduceOp::Sum); });
  in_turn([&] { return world->reduce_scatter(full, part); });
  in_turn([&] { return world->all_gather(filled(me, device), all); });
  in_turn([&] { return world->broadcast(word, 0); });
  const double expected = ranks * (ranks + 1) / 2.0;
  for (i64 i = 0; i < kCount; ++i) ASSERT_EQ(sum.data<double>()[i], expected) << i;
  for (i64 i = 0; i < part.numel(); ++i) ASSERT_EQ(part.data<double>()[i], expected) << i;
  for (i64 i = 0; i < all.numel(); ++i) ASSERT_EQ(all.data<double>()[i], double(i / kCount)) << i;
}

/// Several collectives of two groups are in flight and awaited in a different order.
TEST(MpiProgressTest, SupportsManyCollectivesInFlight) {
  const auto world = world_of_nodes();
  const auto group = world->split(0, -world->rank());
  CpuDevice device;
  std::vector<Tensor> tensors;
  std::vector<Work> works;
  for (int k = 0; k < 6; ++k) {
    tensors.push_back(filled(k, device));
    works.push_back((k % 2 ? *group : *world).all_reduce(tensors.back(), ReduceOp::Sum));
  }
  world->barrier();
  for (std::size_t k = works.size(); k-- > 0;) {
    works[k].wait();
    EXPECT_EQ(tensors[k].data<double>()[kCount - 1], static_cast<double>(k) * world->size());
  }
}

/// Neither side makes a call while the message is transferred.
TEST(MpiProgressTest, MessagesArriveWhileRanksCompute) {
  const auto world = world_of_nodes();
  CpuDevice device;
  const int me = world->rank();
  Tensor t = filled(me == 0 ? 7 : 0, device);
  Work work;
  if (me == 0) world->send(t, 1).wait();
  if (me == 1) work = world->recv(t, 0);
  const volatile double& last = t.data<double>()[kCount - 1];
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (me == 1 && last == 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  if (me == 1) {
    EXPECT_EQ(last, 7);
  }
  if (me == 0) std::this_thread::sleep_for(100ms);  // no call that would progress MPI
  work.wait();
}

/// No rank requests the messages: the first is copied because its tensor changes, and the second is still in its tensor
/// when both are requested.
TEST(MpiProgressTest, UnrequestedMessagesAreCopiedWhenTensorChanges) {
  const auto world = world_of_nodes();
  CpuDevice device;
  const int me = world->rank();
  Tensor first = filled(me == 0 ? 3 : 0, device), second = filled(me == 0 ? 5 : 0, device);
  Work kept;
  if (me == 0) {
    Work work = world->send(first, 1);
    EXPECT_FALSE(work.is_done());
    work.wait();
    std::fill_n(first.data<double>(), kCount, -1);
    kept = world->send(second, 1);
  }
  world->barrier();
  if (me == 1) {
    Work work = world->recv(first, 0);
    world->recv(second, 0).wait();
    work.wait();
    for (i64 i = 0; i < kCount; ++i) {
      ASSERT_EQ(first.data<double>()[i], 3) << i;
      ASSERT_EQ(second.data<double>()[i], 5) << i;
    }
  }
  kept.wait();
}

/// The message that rank 1 requests must leave while rank 0 waits for a sum with rank 2, which starts the sum only
/// after rank 1 has received the message. Rank 0 runs the sum itself, or waits for the thread that runs it.
TEST(MpiProgressTest, RequestedMessagesLeaveWhileSenderWaits) {
  const auto world = world_of_nodes();
  const int me = world->rank();
  const auto group = world->split(me == 1 ? 1 : 0, me);
  if (world->size() < 3) return;
  CpuDevice device;
  for (const auto head_start : {0ms, 5ms}) {
    Tensor large = filled(me == 0 ? 3 : 0, device), word = filled(0, device).flat(0, 1), sum = filled(1, device);
    Work message, summed;
    world->barrier();
    if (me == 0) message = world->send(large, 1), summed = group->all_reduce(sum, ReduceOp::Sum);
    std::this_thread::sleep_for(me == 1 ? 50ms : head_start);  // with the longer head start, the thread begins the sum
    if (me == 1) world->recv(large, 0).wait(), world->send(word, 2).wait();
    if (me == 2) world->recv(word, 1).wait();
    if (me >= 2) summed = group->all_reduce(sum, ReduceOp::Sum);
    summed.wait();
    message.wait();
    EXPECT_EQ(large.data<double>()[kCount - 1], me < 2 ? 3 : 0);
  }
}

/// The device is destroyed together with its tensors.
TEST(MpiProgressTest, TensorsMayBeFreedAfterWait) {
  const auto world = world_of_nodes();
  for (int k = 0; k < 20; ++k) {
    CpuDevice device;
    Tensor t = filled(1, device);
    const i64 before = device.memory().total.bytes;
    world->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(device.memory().total.bytes, before);
    t = {};
    EXPECT_EQ(device.memory().total.bytes, 0);  // no other owner holds the tensor
  }
}

}  // namespace
}  // namespace mcpp::test
