#include "comm/local.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "comm/object_collectives.h"

namespace mcpp {
namespace {

/// Returns the message of the error that ends a run of n ranks.
std::string error_of(int n, const std::function<void(Communicator&, int, Device&)>& f) {
  try {
    run_local_ranks(n, [&](Communicator& world, int rank) {
      CpuDevice device;
      f(world, rank, device);
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(LocalRanksTest, ErrorInOneRankEndsAllWithItsMessage) {
  for (int failing_rank = 0; failing_rank < 4; ++failing_rank) {
    std::atomic<int> num_continued = 0;
    const std::string error = error_of(4, [&](Communicator& world, int rank, Device& device) {
      Tensor t = Tensor::zeros({4}, DType::F32, device);
      world.all_reduce(t, ReduceOp::Sum).wait();
      if (rank == failing_rank) throw std::runtime_error(str("planned failure of rank ", rank));
      if (rank % 2) world.barrier();
      world.recv(t, failing_rank).wait();
      ++num_continued;
    });
    EXPECT_EQ(error, str("planned failure of rank ", failing_rank));
    EXPECT_EQ(num_continued, 0);
  }
}

TEST(LocalRanksTest, ErrorWithOperationInFlightEndsAllRanks) {
  const std::string error = error_of(3, [&](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({1000}, DType::F32, device);
    Work first = rank == 1 ? Work() : world.all_reduce(t, ReduceOp::Sum);
    if (rank == 0) throw std::runtime_error("left with work in flight");
    if (rank == 1) world.recv(t, 0).wait();
  });
  EXPECT_EQ(error, "left with work in flight");
}

TEST(LocalRanksTest, ReportsMismatchedCalls) {
  const std::string kind = error_of(2, [](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({4}, DType::F32, device);
    if (rank == 0) world.broadcast(t, 0).wait();
    if (rank == 1) world.all_reduce(t, ReduceOp::Sum).wait();
  });
  EXPECT_NE(kind.find("where rank"), std::string::npos) << kind;
  const std::string size = error_of(2, [](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({4 + rank}, DType::F32, device);
    world.all_reduce(t, ReduceOp::Sum).wait();
  });
  EXPECT_NE(size.find("all_reduce of 5 fp32"), std::string::npos) << size;
  const std::string message = error_of(2, [](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({4 + rank}, DType::F32, device);
    if (rank == 0) world.send(t, 1);
    if (rank == 1) world.recv(t, 0).wait();
  });
  EXPECT_NE(message.find("rank 0 sent 16 bytes of fp32"), std::string::npos) << message;
}

TEST(LocalRanksTest, ReportsDeadlock) {
  const std::string both_wait = error_of(2, [](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({4}, DType::F32, device);
    world.recv(t, 1 - rank).wait();
    world.send(t, 1 - rank);
  });
  EXPECT_NE(both_wait.find("deadlock"), std::string::npos) << both_wait;
  const std::string error_of_receiver = error_of(3, [](Communicator& world, int rank, Device&) {
    if (rank != 1) world.barrier();
  });
  EXPECT_NE(error_of_receiver.find("deadlock"), std::string::npos) << error_of_receiver;
  const std::string error_of_pair = error_of(2, [](Communicator& world, int rank, Device& device) {
    Tensor t = Tensor::zeros({4}, DType::F32, device);
    if (rank == 0) return static_cast<void>(world.send(t, 1));
    Work first = world.recv(t, 0), second = world.recv(t, 0);
    second.wait();  // not completed by the first
  });
  EXPECT_NE(error_of_pair.find("deadlock"), std::string::npos) << error_of_pair;
}

/// Ranks wait for groups, for each other and out of order. Each wait must be woken by its own operation only.
TEST(LocalRanksTest, WaitersWakeWhenTheirOperationCompletes) {
  constexpr int kRanks = 6, kRounds = 200;
  const auto f = [](Communicator& world, int rank, Device& device) {
    const auto pair = world.split(rank / 2, rank), thirds = world.split(rank % 2, rank);
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    for (int round = 0; round < kRounds; ++round) {
      Tensor a = Tensor::zeros({3}, DType::F32, device), b = Tensor::zeros({3}, DType::F32, device);
      Work first = world.recv(a, before), second = world.recv(b, before);
      Tensor local = Tensor::zeros({3}, DType::F32, device);
      world.send(local, next);
      (round % 2 ? *pair : *thirds).all_reduce(local, ReduceOp::Sum).wait();
      world.send(local, next);
      (round % 3 ? second : first).wait();
      (round % 3 ? first : second).wait();
      if (round % 10 == 0) world.barrier();
    }
  };
  EXPECT_EQ(error_of(kRanks, f), "");
}

TEST(LocalRanksTest, GroupsMayBeAwaitedInDifferentOrder) {
  EXPECT_EQ(error_of(4,
                     [](Communicator& world, int rank, Device& device) {
                       const auto row = world.split(rank / 2, rank), column = world.split(rank % 2, rank);
                       for (int k = 0; k < 50; ++k) {
                         Tensor a = Tensor::zeros({5}, DType::F32, device), b = Tensor::zeros({5}, DType::F32, device);
                         Work first = row->all_reduce(a, ReduceOp::Sum), second = column->all_reduce(b, ReduceOp::Sum);
                         (rank % 3 ? first : second).wait();
                       }
                     }),
            "");
}

TEST(LocalRanksTest, RejectsZeroRanks) {
  EXPECT_THROW(run_local_ranks(0, [](Communicator&, int) {}), Error);
}

TEST(LocalRanksTest, ReportsMismatchedCounts) {
  const std::string error = error_of(3, [](Communicator& world, int rank, Device& device) {
    const Tensor in = Tensor::zeros({4}, DType::F32, device);
    Tensor out = Tensor::zeros({4}, DType::F32, device);
    std::vector<Part> send(3), receive(3);
    if (rank == 2) send[1] = {0, 3};
    if (rank == 1) receive[2] = {0, 2};
    world.all_to_all_v(in, send, out, receive).wait();
  });
  EXPECT_NE(error.find("rank 2 sends 3 elements to rank 1, which expects 2"), std::string::npos) << error;
}

/// Like the ID of NCCL: arbitrary bytes, including zeros and negative ones.
struct Id {
  std::array<char, 128> bytes{};
  bool operator==(const Id&) const = default;
};

TEST(BroadcastValueTest, EveryGroupReceivesIdOfItsFirstRank) {
  const auto id_of = [](int rank) {
    Id id;
    for (std::size_t i = 0; i < id.bytes.size(); ++i)
      id.bytes[i] = static_cast<char>(i * 7 * static_cast<std::size_t>(rank));
    return id;
  };
  for (const int ranks : {1, 2, 4, 8}) {
    run_local_ranks(ranks, [&](Communicator& world, int rank) {
      Id id = id_of(rank + 1);
      broadcast_value(id, world);
      EXPECT_EQ(id, id_of(1)) << "rank " << rank;
      const std::unique_ptr<Communicator> half =
          world.split(rank % 2, -rank);  // the last rank of a color is first in its group
      id = id_of(rank + 1);
      broadcast_value(id, *half);
      const int first = (ranks - 1) % 2 == rank % 2 ? ranks - 1 : ranks - 2;
      EXPECT_EQ(id, id_of(first + 1)) << "rank " << rank;
      if (rank > 0) send_value(id_of(rank), world, 0);
      if (rank > 0) return;
      for (int source = 1; source < ranks; ++source) EXPECT_EQ(receive_value<Id>(world, source), id_of(source));
    });
  }
}

}  // namespace
}  // namespace mcpp
