#include "comm/metered.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "comm/local.h"
#include "tests/support/fakes/fake_wait_timer.h"

namespace mcpp {
namespace {

using namespace std::chrono_literals;

using Clock = std::chrono::steady_clock;

/// Two ranks, one of which arrives late. Lateness is triggered by the observed wait of the other rank, because timing
/// on a busy machine is unreliable.
class LateRank {
 public:
  /// Like run_metered, with ranks 0 and 1.
  void run(const std::function<void(Communicator& group, CommMeter& meter, Device& device)>& body) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      CpuDevice device;
      const auto meter = std::make_shared<CommMeter>();
      const auto group =
          make_metered(world.split(0, rank), meter, {recorders_[static_cast<std::size_t>(rank)], "world", {0, 1}});
      body(*group, *meter, device);
    });
  }
  /// Called by rank 0 between the start of an operation and the wait for it.
  void announce_wait() { is_waiting_ = true; }
  /// Called by rank 1. Returns some time after rank 0 began to wait for the operation.
  void arrive_late() {
    while (!is_waiting_ || !is_waiting()) std::this_thread::yield();
    const Clock::time_point begin = Clock::now();
    std::this_thread::sleep_for(50ms);
    waited_seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  /// Returns the minimum time that rank 0 waited. Valid on rank 0 after the operation.
  double waited_seconds() const { return waited_seconds_; }

 private:
  bool is_waiting() const {
    const FlightSnapshot flight = recorders_[0].snapshot();
    return !flight.open.empty() && flight.open[0].state == OperationRecord::State::Waiting;
  }

  std::array<FlightRecorder, 2> recorders_;
  std::atomic<bool> is_waiting_ = false;
  std::atomic<double> waited_seconds_ = 0;
};

/// Runs the body on each of n ranks, with a metered group of all of them.
void run_metered(int n, const std::function<void(Communicator& group, CommMeter& meter, Device& device)>& body) {
  run_local_ranks(n, [&](Communicator& world, int rank) {
    CpuDevice device;
    const auto meter = std::make_shared<CommMeter>();
    const auto group = make_metered(world.split(0, rank), meter);
    body(*group, *meter, device);
  });
}

void expect_count(const CommMeter& meter, CommOp op, i64 calls, i64 bytes) {
  EXPECT_EQ(meter[op].calls, calls) << "operation " << static_cast<int>(op);
  EXPECT_EQ(meter[op].bytes, bytes) << "operation " << static_cast<int>(op);
}

TEST(MeteredCommunicatorTest, CountsBytesOfEachOperation) {
  run_metered(4, [](Communicator& group, CommMeter& meter, Device& device) {
    Tensor full = Tensor::zeros({24}, DType::F32, device), other = Tensor::zeros({24}, DType::F32, device);
    Tensor shard = Tensor::zeros({6}, DType::F32, device);
    Tensor narrow = Tensor::zeros({3}, DType::BF16, device);
    group.all_reduce(full, ReduceOp::Sum).wait();
    group.all_reduce(narrow, ReduceOp::Max).wait();
    group.all_gather(shard, full).wait();
    group.reduce_scatter(full, shard).wait();
    group.reduce_scatter(full, shard).wait();
    group.broadcast(full, 1).wait();
    group.all_to_all(full, other).wait();
    const int next = (group.rank() + 1) % 4, previous = (group.rank() + 3) % 4;
    const std::vector<Part> parts{{0, 2}, {2, 3}, {5, 4}, {9, 5}};  // of each rank, for every other rank
    std::vector<Part> send, receive;
    for (int r = 0; r < 4; ++r) {
      send.push_back(parts[static_cast<std::size_t>(group.rank())]);
      receive.push_back(parts[static_cast<std::size_t>(r)]);
    }
    group.all_to_all_v(full, send, other, receive).wait();
    const i64 uneven = 3 * 4 * (group.rank() + 2);  // to three other ranks
    group.send(shard, next).wait();
    group.recv(shard, previous).wait();
    group.barrier();

    expect_count(meter, CommOp::AllReduce, 2, 2 * 96 * 3 / 4 + 2 * 6 * 3 / 4);
    expect_count(meter, CommOp::AllGather, 1, 72);
    expect_count(meter, CommOp::ReduceScatter, 2, 144);
    expect_count(meter, CommOp::Broadcast, 1, 96);
    expect_count(meter, CommOp::AllToAll, 2, 72 + uneven);
    expect_count(meter, CommOp::Send, 1, 24);
    expect_count(meter, CommOp::Recv, 1, 0);
    expect_count(meter, CommOp::Barrier, 1, 0);
    EXPECT_EQ(meter.total_bytes(), 144 + 9 + 72 + 144 + 96 + 72 + uneven + 24);
  });
}

TEST(MeteredCommunicatorTest, RoundsDownPerCall) {
  run_metered(3, [](Communicator& group, CommMeter& meter, Device& device) {
    Tensor t = Tensor::zeros({7}, DType::F32, device);
    for (int k = 0; k < 3; ++k) group.all_reduce(t, ReduceOp::Sum).wait();
    expect_count(meter, CommOp::AllReduce, 3, 3 * 37);  // 2 * 28 * 2 / 3 = 37.3
  });
}

TEST(MeteredCommunicatorTest, CountsEmptyTensorsAsCallsWithoutBytes) {
  run_metered(2, [](Communicator& group, CommMeter& meter, Device& device) {
    Tensor none = Tensor::zeros({0}, DType::F32, device), part = Tensor::zeros({0}, DType::F32, device);
    group.all_reduce(none, ReduceOp::Sum).wait();
    group.all_gather(part, none).wait();
    group.reduce_scatter(none, part).wait();
    group.broadcast(none, 0).wait();
    group.all_to_all(none, part).wait();
    group.send(none, 1 - group.rank()).wait();
    group.recv(none, 1 - group.rank()).wait();
    for (std::size_t op = 0; op + 1 < kCommOps; ++op) expect_count(meter, static_cast<CommOp>(op), 1, 0);
  });
}

TEST(MeteredCommunicatorTest, SingleRankSendsNoBytes) {
  CpuDevice device;
  const auto meter = std::make_shared<CommMeter>();
  const auto group = make_metered(make_self_communicator(), meter);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  Tensor t = Tensor::zeros({8}, DType::F32, device), u = Tensor::zeros({8}, DType::F32, device);
  group->all_reduce(t, ReduceOp::Sum).wait();
  group->all_gather(t, u).wait();
  group->reduce_scatter(t, u).wait();
  group->broadcast(t, 0).wait();
  group->all_to_all(t, u).wait();
  for (std::size_t op = 0; op <= static_cast<std::size_t>(CommOp::AllToAll); ++op)
    expect_count(*meter, static_cast<CommOp>(op), 1, 0);
  EXPECT_EQ(meter->total_bytes(), 0);
}

TEST(MeteredCommunicatorTest, ReturnsResultsOfWrappedGroup) {
  run_metered(3, [](Communicator& group, CommMeter&, Device& device) {
    Tensor t = Tensor::zeros({1}, DType::F32, device), all = Tensor::zeros({3}, DType::F32, device);
    t.data<float>()[0] = static_cast<float>(group.rank() + 1);
    group.all_gather(t, all).wait();
    EXPECT_EQ(all.data<float>()[2], 3);
    group.all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(t.data<float>()[0], 6);
  });
}

TEST(MeteredCommunicatorTest, CountsWaitButNotComputeAsExposed) {
  LateRank late;
  late.run([&](Communicator& group, CommMeter& meter, Device& device) {
    Tensor t = Tensor::zeros({4}, DType::F32, device);
    const Clock::time_point start = Clock::now();
    Work first = group.all_reduce(t, ReduceOp::Sum);
    std::this_thread::sleep_for(200ms);  // a computation that hides the communication
    first.wait();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    EXPECT_GT(meter.exposed_seconds, 0);
    EXPECT_LE(meter.exposed_seconds, elapsed.count() - 0.2);
    group.barrier();

    meter.reset();
    EXPECT_EQ(meter.exposed_seconds, 0);
    expect_count(meter, CommOp::AllReduce, 0, 0);
    if (group.rank() == 1) late.arrive_late();
    Work second = group.all_reduce(t, ReduceOp::Sum);
    if (group.rank() == 0) late.announce_wait();
    second.wait();
    if (group.rank() == 0) {
      EXPECT_GE(late.waited_seconds(), 0.05);
      EXPECT_GE(meter.exposed_seconds, late.waited_seconds());
    }
  });
}

/// A GPU waits while the host continues. The exposed time is that of the device, which becomes known later.
TEST(MeteredCommunicatorTest, CountsWaitTimeOfDevice) {
  run_local_ranks(2, [&](Communicator& world, int rank) {
    CpuDevice device;
    const auto meter = std::make_shared<CommMeter>();
    const auto waits = std::make_shared<test::FakeWaitTimer>();
    meter->waits = waits;
    const auto group = make_metered(world.split(0, rank), meter);
    Tensor t = Tensor::zeros({4}, DType::F32, device);
    group->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_GT(waits->count(), 0);
    EXPECT_EQ(meter->exposed_seconds, 0) << "none has ended";
    waits->end_all(3);
    group->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(meter->exposed_seconds, 3) << "not what the host waited";
    EXPECT_FALSE(waits->is_open());
  });
}

TEST(MeteredCommunicatorTest, WorkOutlivesGroup) {
  run_local_ranks(2, [](Communicator& world, int rank) {
    CpuDevice device;
    Tensor t = Tensor::zeros({1}, DType::I32, device);
    t.data<i32>()[0] = rank + 1;
    Work work;
    {
      auto group = make_metered(world.split(0, rank), std::make_shared<CommMeter>());
      work = group->all_reduce(t, ReduceOp::Sum);
    }
    work.wait();
    EXPECT_EQ(t.data<i32>()[0], 3);
  });
}

TEST(MeteredCommunicatorTest, DestructorWaitsForUnawaitedWork) {
  LateRank late;
  late.run([&](Communicator& group, CommMeter& meter, Device& device) {
    Tensor t = Tensor::zeros({1}, DType::I32, device);
    t.data<i32>()[0] = group.rank() + 1;
    if (group.rank() == 1) late.arrive_late();
    {
      const Work work = group.all_reduce(t, ReduceOp::Sum);
      if (group.rank() == 0) late.announce_wait();
    }
    EXPECT_EQ(t.data<i32>()[0], 3);
    if (group.rank() == 0) {
      EXPECT_GE(late.waited_seconds(), 0.05);
      EXPECT_GE(meter.exposed_seconds, late.waited_seconds());
    }
  });
}

TEST(MeteredCommunicatorTest, IgnoresRejectedCallsAndSubgroups) {
  run_metered(2, [](Communicator& group, CommMeter& meter, Device& device) {
    Tensor t = Tensor::zeros({3}, DType::F32, device);
    EXPECT_THROW(group.broadcast(t, 2), Error);
    expect_count(meter, CommOp::Broadcast, 0, 0);
    const auto part = group.split(0, group.rank());
    part->all_reduce(t, ReduceOp::Sum).wait();
    expect_count(meter, CommOp::AllReduce, 0, 0);
  });
}

}  // namespace
}  // namespace mcpp
