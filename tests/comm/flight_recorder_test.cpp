#include "comm/watchdog/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "comm/local.h"
#include "comm/metered.h"

namespace mcpp {
namespace {

using State = OperationRecord::State;

TEST(FlightRecorderTest, ReportsOpenAndFinishedOperations) {
  FlightRecorder recorder;
  recorder.enter(Activity::Training, 7);
  GroupLog tp(recorder, "tp", {4, 5}), pp(recorder, "pp", {1, 5, 9});
  { const auto done = tp.collective("all_reduce", 2048); }
  auto receive = pp.recv(0, 100);
  receive.pause();
  const auto waiting = tp.collective("all_gather", 0);

  const FlightSnapshot flight = recorder.snapshot();
  EXPECT_EQ(flight.activity, Activity::Training);
  ASSERT_EQ(flight.open.size(), 2u);
  EXPECT_EQ(flight.open[0].state, State::Started);
  EXPECT_EQ(flight.open[0].to_string(), "recv #1 from rank 1 of 100 B in pp (ranks 1 5 9), iteration 7");
  EXPECT_EQ(flight.open[1].state, State::Waiting);
  EXPECT_EQ(flight.open[1].to_string(), "all_gather #2 in tp (ranks 4 5), iteration 7");
  const auto done = recorder.last_done(5);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].to_string(), "all_reduce #1 of 2.00 KiB in tp (ranks 4 5), iteration 7");
}

TEST(FlightRecorderTest, ShortensLongRankLists) {
  std::vector<int> ranks;
  for (int r = 0; r < 100; ++r) ranks.push_back(r);
  const GroupName group{.name = "dp", .ranks = ranks};
  EXPECT_EQ(group.to_string(), "dp (ranks 0 1 2 3 4 5 6 7 ... 92 93 94 95 96 97 98 99)");
}

/// Both sides of a message, and all ranks of a collective, must use the same sequence number.
TEST(FlightRecorderTest, RanksAssignSameSequenceNumbers) {
  run_local_ranks(3, [](Communicator& world, int rank) {
    CpuDevice device;
    FlightRecorder recorder;
    const auto group =
        make_metered(world.split(0, rank), std::make_shared<CommMeter>(), GroupLog(recorder, "pp", {0, 1, 2}));
    Tensor t = Tensor::zeros({1}, DType::I32, device);
    if (rank == 0) group->send(t, 2).wait();
    if (rank == 1) {
      for (int i = 0; i < 2; ++i) group->send(t, 2).wait();
    }
    if (rank == 2) {
      group->recv(t, 0).wait();
      for (int i = 0; i < 2; ++i) group->recv(t, 1).wait();
    }
    group->barrier();
    group->all_reduce(t, ReduceOp::Sum).wait();
    const auto done = recorder.last_done(3);
    EXPECT_EQ(done[0].to_string(), "all_reduce #2 of 4 B in pp (ranks 0 1 2)");
    EXPECT_EQ(done[1].to_string(), "barrier #1 in pp (ranks 0 1 2)");
    const char* last[]{"send #1 to rank 2", "send #2 to rank 2", "recv #2 from rank 1"};
    EXPECT_EQ(done[2].to_string(), std::string(last[rank]) + " of 4 B in pp (ranks 0 1 2)");
    EXPECT_TRUE(recorder.snapshot().open.empty());
  });
}

TEST(FlightRecorderTest, ShowsWaitOfRankWhileItLasts) {
  std::atomic<bool> seen = false;
  run_local_ranks(2, [&](Communicator& world, int rank) {
    CpuDevice device;
    FlightRecorder recorder;
    const auto group =
        make_metered(world.split(0, rank), std::make_shared<CommMeter>(), GroupLog(recorder, "dp", {0, 1}));
    Tensor t = Tensor::zeros({1}, DType::I32, device);
    if (rank == 1) {
      while (!seen) std::this_thread::yield();
      group->all_reduce(t, ReduceOp::Sum).wait();
      return;
    }
    std::thread watcher([&] {
      for (FlightSnapshot flight; flight.open.empty() || flight.open[0].state != State::Waiting;
           flight = recorder.snapshot())
        std::this_thread::yield();
      seen = true;
    });
    group->all_reduce(t, ReduceOp::Sum).wait();
    watcher.join();
  });
}

TEST(FlightRecorderTest, DropsOldestEntriesWithoutAffectingNewerEntries) {
  FlightRecorder recorder;
  GroupLog group(recorder, "tp", {0});
  auto old = group.collective("all_reduce", 1);
  for (u64 i = 0; i < FlightRecorder::kCapacity; ++i) group.collective("barrier", 0).pause();
  EXPECT_TRUE(recorder.snapshot().open.empty());
  const auto last = group.collective("broadcast", 0);
  old.resume();  // its slot belongs to a newer entry now
  ASSERT_EQ(recorder.snapshot().open.size(), 1u);
  EXPECT_STREQ(recorder.snapshot().open[0].name, "broadcast");
  EXPECT_EQ(recorder.last_done(1u << 20).size(), FlightRecorder::kCapacity - 1);
}

TEST(FlightRecorderTest, PollsDeviceForQueuedOperations) {
  FlightRecorder recorder;
  GroupLog group(recorder, "tp", {0});
  bool done = false, failed = false;
  group.collective("all_reduce", 0).track_completion([&] { return done; });
  recorder.poll();
  ASSERT_EQ(recorder.snapshot().open.size(), 1u);
  EXPECT_EQ(recorder.snapshot().open[0].state, State::Queued);
  done = true;
  recorder.poll();
  EXPECT_TRUE(recorder.snapshot().open.empty());
  group.collective("all_reduce", 0).track_completion([&] {
    return failed ? throw std::runtime_error("no network") : false;
  });
  recorder.poll();
  EXPECT_EQ(recorder.snapshot().error, "");
  failed = true;
  recorder.poll();
  EXPECT_EQ(recorder.snapshot().error, "no network");
}

TEST(FlightRecorderTest, GroupLogWithoutRecorderDoesNothing) {
  GroupLog none;
  auto entry = none.collective("all_reduce", 1);
  entry.pause();
  entry.track_completion([] { return true; });
  EXPECT_NO_THROW(none.send(3, 1));
}

}  // namespace
}  // namespace mcpp
