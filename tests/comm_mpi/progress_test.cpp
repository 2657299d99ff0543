// What goes on between nodes while ranks do something else. That results are right is for the suite in
// communicator_test.cpp.
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
  return session().world([](int rank) { return rank; });
}

Tensor filled(double value, Device& device) {
  Tensor t = Tensor::empty({kCount}, DType::F64, device);
  std::fill_n(t.data<double>(), kCount, value);
  return t;
}

/// Rank 1 begins each of them only when it hears from rank 0, which has begun it then.
TEST(Progress, CollectivesBetweenNodesAreStartedWithoutWaitingForTheOthers) {
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

/// Several on their way, of two groups, waited for in another order.
TEST(Progress, ManyCollectivesMayBeOnTheirWay) {
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

/// Neither side calls anything while the message comes.
TEST(Progress, MessagesBetweenNodesArriveWhileRanksCompute) {
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
  if (me == 0) std::this_thread::sleep_for(100ms);  // nothing that would move MPI
  work.wait();
}

/// What its receiver has asked for leaves while its sender computes, and needs the tensor until then; two of them, so
/// that neither is taken for the other.
TEST(Progress, MessagesThatWereAskedForLeaveFromTheirTensors) {
  const auto world = world_of_nodes();
  CpuDevice device;
  const int me = world->rank();
  std::vector<Tensor> tensors{filled(me == 0 ? 3 : 0, device), filled(me == 0 ? 5 : 0, device)};
  std::vector<Work> works;
  for (Tensor& t : tensors)
    if (me == 1) works.push_back(world->recv(t, 0));
  world->barrier();
  for (Tensor& t : tensors)
    if (me == 0) works.push_back(world->send(t, 1));
  const auto end = std::chrono::steady_clock::now() + 20s;
  for (Work& work : works) {
    while (me == 0 && !work.is_done() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(me == 1 || work.is_done());
  }
  for (Work& work : works) work.wait();
  if (me > 1) return;
  for (i64 i = 0; i < kCount; ++i) {
    ASSERT_EQ(tensors[0].data<double>()[i], 3) << i;
    ASSERT_EQ(tensors[1].data<double>()[i], 5) << i;
  }
}

/// Nobody asks: what was sent first is taken back as a copy, and the other is still in its tensor when both are asked
/// for.
TEST(Progress, MessagesThatNobodyAskedForAreCopiedWhenTheirTensorsChange) {
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

/// The device goes with them.
TEST(Progress, TensorsMayGoAsSoonAsTheyWereWaitedFor) {
  const auto world = world_of_nodes();
  for (int k = 0; k < 20; ++k) {
    CpuDevice device;
    Tensor t = filled(1, device);
    const i64 before = device.memory().total.bytes;
    world->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(device.memory().total.bytes, before);
    t = {};
    EXPECT_EQ(device.memory().total.bytes, 0);  // nobody else holds it
  }
}

}  // namespace
}  // namespace mcpp::test
