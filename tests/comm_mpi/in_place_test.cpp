// Collectives on tensors that the ranks of a node map from each other. The suite in communicator_test.cpp checks the
// results; these tests check that the operations work in place, and that tensors and devices may change between
// operations.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "comm/staged.h"
#include "tensor/cpu/shared_arena.h"
#include "tests/comm_mpi/session.h"

namespace mcpp::test {
namespace {

constexpr i64 kCount = 50000;

/// Returns the number of tensor arenas that this process has mapped, its own and those of its peers.
int mapped_arenas() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);)
    found += line.find("/memfd:megatron_cpp_tensors") != std::string::npos;
  return found;
}

/// Returns kCount values that identify rank and element.
Tensor make(int rank, Device& device) {
  Tensor t = Tensor::empty({kCount}, DType::I64, device);
  for (i64 i = 0; i < kCount; ++i) t.data<i64>()[i] = (rank + 1) * 1000000 + i;
  return t;
}

void expect_sum(const Tensor& t, int ranks) {
  for (i64 i = 0; i < kCount; ++i) ASSERT_EQ(t.data<i64>()[i], ranks * (ranks + 1) / 2 * 1000000 + ranks * i) << i;
}

TEST(InPlaceTest, RanksMapPeerArenasOnceForAllGroups) {
  const auto world = session().make_world();
  const auto group = world->split(0, -world->rank());
  CpuDevice device({.shared = true});
  Tensor t = make(world->rank(), device), u = make(group->rank(), device);
  ASSERT_TRUE(device.arena()->contains(t.raw()));
  world->all_reduce(t, ReduceOp::Sum).wait();
  EXPECT_EQ(mapped_arenas(), world->size());
  group->all_reduce(u, ReduceOp::Sum).wait();
  EXPECT_EQ(mapped_arenas(), world->size());
  expect_sum(t, world->size());
  expect_sum(u, world->size());
}

TEST(InPlaceTest, ResultsAreEqualWithoutMapping) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  hide_arena(device);
  Tensor t = make(world->rank(), device);
  for (int k = 0; k < 3; ++k) {
    t = make(world->rank(), device);
    world->all_reduce(t, ReduceOp::Sum).wait();
    expect_sum(t, world->size());
  }
  EXPECT_EQ(mapped_arenas(), 1);
}

TEST(InPlaceTest, DevicesAndBlocksMayChangeBetweenOperations) {
  const auto world = session().make_world();
  CpuDevice plain;
  for (int k = 0; k < 6; ++k) {
    CpuDevice first({.shared = true}), second({.shared = true});
    Tensor a = make(world->rank(), world->rank() % 2 ? first : second);
    world->all_reduce(a, ReduceOp::Sum).wait();
    expect_sum(a, world->size());
    a = {};
    first.trim();
    second.trim();
    Tensor b = make(world->rank(), second), c = make(world->rank(), k % 2 && world->rank() == 0 ? plain : second);
    world->all_reduce(c, ReduceOp::Sum).wait();
    world->all_reduce(b, ReduceOp::Sum).wait();
    expect_sum(b, world->size());
    expect_sum(c, world->size());
  }
}

/// A rank with small parts must not prevent other ranks from working in place.
TEST(InPlaceTest, UnevenPartsMayBeSmall) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  const int ranks = world->size(), me = world->rank();
  const i64 count = me == 0 ? 3 : kCount;
  const Tensor in = make(me, device).flat(0, count);
  Tensor small = Tensor::empty({count}, DType::I64, device), out = Tensor::zeros({kCount * ranks}, DType::I64, device);
  std::copy_n(in.data<i64>(), count, small.data<i64>());
  std::vector<Part> send(static_cast<std::size_t>(ranks)), receive(send);
  for (int r = 0; r < ranks; ++r) {
    send[static_cast<std::size_t>(r)] = {0, count};
    receive[static_cast<std::size_t>(r)] = {r * kCount, r == 0 ? 3 : kCount};
  }
  Work work = world->all_to_all_v(small, send, out, receive);
  EXPECT_TRUE(work.is_complete());  // messages are still in flight
  work.wait();
  for (i64 i = 0; i < out.numel(); ++i) {
    const i64 source = i / kCount, at = i % kCount;
    ASSERT_EQ(out.data<i64>()[i], source == 0 && at >= 3 ? 0 : (source + 1) * 1000000 + at) << i;
  }
}

TEST(InPlaceTest, PartsMayStartAtAnyOffset) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  const i64 before = 3 + world->rank();  // different offsets on different ranks
  Tensor buffer = Tensor::zeros({kCount + 20}, DType::I64, device), part = buffer.flat(before, kCount);
  for (i64 i = 0; i < kCount; ++i) part.data<i64>()[i] = (world->rank() + 1) * 1000000 + i;
  world->all_reduce(part, ReduceOp::Sum).wait();
  expect_sum(part, world->size());
  for (i64 i = 0; i < before; ++i) EXPECT_EQ(buffer.data<i64>()[i], 0) << i;
  for (i64 i = before + kCount; i < buffer.numel(); ++i) EXPECT_EQ(buffer.data<i64>()[i], 0) << i;
}

/// The first message shows the sender that the peer can map its arena. Later messages are read in place, or copied when
/// the sender is about to change the tensor.
TEST(InPlaceTest, MessagesAreReadInPlaceOrCopiedBeforeTensorChanges) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  const int me = world->rank();
  const auto expect_message = [&](const Tensor& t) {
    for (i64 i = 0; i < kCount; ++i) ASSERT_EQ(t.data<i64>()[i], 1000000 + i) << i;
  };
  Tensor first = make(0, device), changing = make(0, device), kept = make(0, device);
  Tensor received = Tensor::empty({kCount}, DType::I64, device);
  if (me == 0) {
    EXPECT_TRUE(world->send(first, 1).is_complete());
  }
  if (me == 1) world->recv(received, 0).wait();
  world->barrier();
  if (me == 0) {
    Work work = world->send(changing, 1);
    EXPECT_FALSE(work.is_done());
    work.wait();  // rank 1 waits below, but not for this rank
    std::fill_n(changing.data<i64>(), kCount, -1);
  }
  world->barrier();
  if (me == 1) {
    world->recv(received, 0).wait();
    expect_message(received);
  }
  Work work;
  if (me == 0) work = world->send(kept, 1);
  if (me == 1) {
    world->recv(received, 0).wait();
    expect_message(received);
  }
  world->barrier();
  EXPECT_TRUE(work.is_done());
}

/// A watchdog queries messages without knowing their group: when the slot is reused by a later message, and when the
/// group was destroyed.
TEST(InPlaceTest, MessagesCanBeQueriedAfterGroupIsDestroyed) {
  std::function<bool()> is_first_done, is_second_done;
  {
    const auto world = session().make_world();
    CpuDevice device({.shared = true});
    Tensor t = make(0, device), received = Tensor::empty({kCount}, DType::I64, device);
    const auto take_query = [&] {
      Work work = world->send(t, 1);
      return work.take_query();
    };
    if (world->rank() == 0) world->send(t, 1).wait();  // shows that the arena can be mapped
    if (world->rank() == 1) world->recv(received, 0).wait();
    world->barrier();
    if (world->rank() == 0) is_first_done = take_query();
    if (world->rank() == 1) world->recv(received, 0).wait();
    world->barrier();
    if (world->rank() == 0) {
      is_second_done = take_query();
      EXPECT_TRUE(is_first_done());
      EXPECT_FALSE(is_second_done());
    }
    world->barrier();
    if (world->rank() == 1) world->recv(received, 0).wait();
  }
  if (session().rank() == 0) {
    EXPECT_TRUE(is_first_done());
    EXPECT_TRUE(is_second_done());
  }
}

/// The slot of a received message is reused by the next one. A late wait for the first message must not touch it.
TEST(InPlaceTest, LateWaitDoesNotAffectNextMessage) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  const int me = world->rank();
  const Tensor first = make(0, device), second = make(1, device);
  Tensor received = Tensor::empty({kCount}, DType::I64, device);
  const auto receive = [&](const Tensor& sent) {
    if (me == 1) world->recv(received, 0).wait();
    for (i64 i = 0; me == 1 && i < kCount; ++i) ASSERT_EQ(received.data<i64>()[i], sent.data<i64>()[i]) << i;
  };
  if (me == 0) world->send(first, 1).wait();  // shows that the arena can be mapped
  receive(first);
  world->barrier();
  Work of_first, of_second;
  if (me == 0) of_first = world->send(first, 1);
  receive(first);
  world->barrier();
  if (me == 0) of_second = world->send(second, 1);
  of_first.wait();
  world->barrier();
  receive(second);
  world->barrier();
}

TEST(InPlaceTest, RejectsMessageOfDifferentLength) {
  const auto world = session().make_world();
  CpuDevice device({.shared = true});
  if (world->rank() == 0) world->send(make(0, device), 1);
  Tensor longer = Tensor::empty({kCount + 1}, DType::I64, device);
  if (world->rank() == 1) {
    EXPECT_THROW(world->recv(longer, 0).wait(), Error);
  }
  Tensor right = Tensor::empty({kCount}, DType::I64, device);
  if (world->rank() == 0) world->send(make(0, device), 1);
  if (world->rank() == 1) world->recv(right, 0).wait();
}

/// Covers messages within a node and between nodes: a sent message keeps its values while later messages are read from
/// the device.
TEST(StagedCommunicatorTest, PendingMessagesKeepTheirCopies) {
  for (const bool is_far : {false, true}) {
    CpuDevice device;
    const auto world =
        make_staged_communicator(session().make_world([&](int rank) { return is_far ? rank : 0; }), device);
    const int me = world->rank();
    std::vector<Work> sends;
    const i64 count = i64{1} << 18;
    for (int k = 0; k < 3; ++k) {
      Tensor t = Tensor::empty({count}, DType::I64, device);
      std::fill_n(t.data<i64>(), count, k + 1);
      if (me == 0) sends.push_back(world->send(t, 1));
    }
    world->barrier();
    for (int k = 0; me == 1 && k < 3; ++k) {
      Tensor t = Tensor::empty({count}, DType::I64, device);
      world->recv(t, 0).wait();
      for (i64 i = 0; i < count; ++i) ASSERT_EQ(t.data<i64>()[i], k + 1) << i;
    }
    sends.clear();
    world->barrier();
  }
}

TEST(MpiSessionTest, ReportsRanksAndCoresOfNode) {
  EXPECT_EQ(static_cast<int>(session().ranks_on_node().size()),
            session().size());  // all ranks of the tests run on one node
  // Regardless of the cores that each rank is bound to, it counts the cores of all ranks of the node, and never more
  // than exist.
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  EXPECT_GE(session().cores_on_node(), CPU_COUNT(&own));
  EXPECT_LE(session().cores_on_node(), ::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace
}  // namespace mcpp::test
