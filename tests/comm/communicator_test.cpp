// One suite for all backends. Results are compared bitwise with sums computed in rank order by a single thread. Every
// rank can generate the tensors of all others, so expected values need no communication.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "comm/reduce.h"
#include "tensor/transfer.h"
#include "tests/comm/backend.h"

namespace mcpp::test {
namespace {

constexpr DType kTypes[]{DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I64};
/// Element counts: zero, one, an odd number, more than a block of the reductions, and more than a segment of shared
/// memory (fp64: 1 MiB).
constexpr i64 kCounts[]{0, 1, 7, 2049, 132001};

/// Returns the largest element count tested for a type: all of kCounts for one wide and one low-precision type, a few
/// blocks for the others.
i64 max_elements(DType type) {
  return type == DType::F64 || type == DType::BF16 ? kCounts[4] : 20001;
}

/// Returns values whose sum depends on the order of addition, different for every rank and type.
template <class T>
T number(int rank, i64 i) {
  const u32 x = static_cast<u32>(rank * 7919 + i * 104729) * 2654435761u;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<i32>(x));
  const double magnitude = static_cast<double>(1 << x % 13) / 64;
  return from_double<T>((static_cast<double>(x >> 8) / (1 << 24) - 0.5) * magnitude);
}

Tensor make(DType type, i64 count, int rank, Device& device) {
  Tensor t = Tensor::empty({count}, type, device);
  on_type(type, [&]<class T>() {
    std::vector<T> values;
    for (i64 i = 0; i < count; ++i) values.push_back(number<T>(rank, i));
    write_values(values, t);
  });
  return t;
}

/// Returns a tensor of `count` copies of a value.
template <class T>
Tensor filled(i64 count, T value, Device& device) {
  Tensor t = Tensor::empty({count}, DTypeOf<T>::value, device);
  write_values(std::vector<T>(static_cast<std::size_t>(count), value), t);
  return t;
}

template <class T>
T reduced(ReduceOp op, int ranks, i64 i) {
  using A = std::conditional_t<kIsLowPrecision<T>, float, T>;
  A acc = static_cast<A>(number<T>(0, i));
  for (int r = 1; r < ranks; ++r) {
    const A x = static_cast<A>(number<T>(r, i));
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      acc = op == ReduceOp::Max ? std::max(acc, x) : static_cast<T>(static_cast<U>(acc) + static_cast<U>(x));
    } else {
      acc = op == ReduceOp::Max ? std::max(acc, x) : acc + x;
    }
  }
  return static_cast<T>(acc);
}

/// Checks that element i of t is bitwise equal to expected(i).
template <class T, class F>
void expect_bits(const Tensor& t, const F& expected, const std::string& what) {
  const std::vector<T> values = read_values<T>(t);
  for (i64 i = 0; i < t.numel(); ++i) {
    const T want = expected(i), got = values[static_cast<std::size_t>(i)];
    ASSERT_EQ(std::memcmp(&want, &got, sizeof(T)), 0) << what << " of " << name_of(t.dtype()) << ", element " << i
                                                      << ": " << to_double(got) << " instead of " << to_double(want);
  }
}

/// Returns the largest error of a sum over ranks in any order, rounded after each addition.
template <class T>
double max_sum_error(int ranks, i64 i) {
  constexpr double epsilon = std::is_integral_v<T>         ? 0
                             : std::is_same_v<T, BFloat16> ? 0x1p-8
                             : std::is_same_v<T, Float16>  ? 0x1p-11
                             : std::is_same_v<T, float>    ? 0x1p-23
                                                           : 0x1p-52;
  double magnitude = 0;
  for (int r = 0; r < ranks; ++r) magnitude += std::abs(to_double(number<T>(r, i)));
  return 2 * ranks * epsilon * magnitude;
}

class CommunicatorTest : public testing::TestWithParam<Backend> {
 protected:
  /// Returns true if the backend adds in the order of ranks: all but NCCL, unless it is simulated with that order.
  static bool sums_in_rank_order() {
    return !GetParam().name.starts_with("nccl") || std::getenv("MCPP_SIMULATOR_RANK_ORDER") != nullptr;
  }
  /// Checks that element i of t is the sum expected(i) of element first + i of all ranks, bitwise if the backend adds
  /// in the order of ranks.
  template <class T, class F>
  static void expect_sums(const Tensor& t, int ranks, i64 first, const F& expected, const std::string& what) {
    if (sums_in_rank_order()) return expect_bits<T>(t, expected, what);
    const std::vector<T> values = read_values<T>(t);
    for (i64 i = 0; i < t.numel(); ++i)
      ASSERT_NEAR(to_double(values[static_cast<std::size_t>(i)]), to_double(expected(i)),
                  max_sum_error<T>(ranks, first + i))
          << what << " of " << name_of(t.dtype()) << ", element " << i;
  }

  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  }
  static void run(const RankBody& body) { GetParam().run(body); }
  /// Runs the body for each type and element count.
  static void run_all(const std::function<void(Communicator&, Device&, DType, i64)>& body) {
    run([&](Communicator& world, Device& device) {
      for (const DType type : kTypes)
        for (const i64 count : kCounts) body(world, device, type, std::min(count, max_elements(type)));
    });
  }
};

TEST_P(CommunicatorTest, AllReduceSumsInRankOrder) {
  run_all([](Communicator& world, Device& device, DType type, i64 count) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Max}) {
      Tensor t = make(type, count, world.rank(), device);
      world.all_reduce(t, op).wait();
      on_type(type, [&]<class T>() {
        expect_sums<T>(
            t, world.size(), 0, [&](i64 i) { return reduced<T>(op, world.size(), i); }, "all_reduce");
      });
    }
  });
}

TEST_P(CommunicatorTest, AllReduceMaxPropagatesNaN) {
  run([](Communicator& world, Device& device) {
    for (int source = 0; source < world.size(); ++source) {
      Tensor t = filled<float>(3, world.rank() == source ? std::nanf("") : 0, device);
      Tensor first = t.flat(0, 1);
      write_values<float>({0}, first);
      world.all_reduce(t, ReduceOp::Max).wait();
      const std::vector<float> values = read_values<float>(t);
      EXPECT_EQ(values[0], 0);
      EXPECT_TRUE(std::isnan(values[1]));
    }
  });
}

TEST_P(CommunicatorTest, ReduceScatterSumsInRankOrder) {
  run_all([](Communicator& world, Device& device, DType type, i64 count) {
    const i64 first = world.rank() * count;
    const Tensor full = make(type, count * world.size(), world.rank(), device);
    const Tensor in_place = make(type, count * world.size(), world.rank(), device);
    Tensor apart = Tensor::empty({count}, type, device), inside = in_place.slice(first, first + count);
    world.reduce_scatter(full, apart).wait();
    world.reduce_scatter(in_place, inside).wait();
    on_type(type, [&]<class T>() {
      const auto sum = [&](i64 i) { return reduced<T>(ReduceOp::Sum, world.size(), first + i); };
      expect_sums<T>(apart, world.size(), first, sum, "reduce_scatter");
      expect_sums<T>(inside, world.size(), first, sum, "reduce_scatter in place");
      const std::vector<T> sums = read_values<T>(inside);
      const auto kept = [&](i64 i) {
        return i >= first && i < first + count ? sums[static_cast<std::size_t>(i - first)] : number<T>(world.rank(), i);
      };
      expect_bits<T>(in_place, kept, "the rest of full");
    });
  });
}

TEST_P(CommunicatorTest, AllGatherReturnsShardsOfAllRanks) {
  run_all([](Communicator& world, Device& device, DType type, i64 count) {
    const Tensor shard = make(type, count, world.rank(), device);
    Tensor full = Tensor::empty({count * world.size()}, type, device);
    Tensor in_place = Tensor::empty({count * world.size()}, type, device);
    Tensor inside = in_place.slice(world.rank() * count, (world.rank() + 1) * count);
    on_type(type, [&]<class T>() { write_values(read_values<T>(shard), inside); });
    world.all_gather(shard, full).wait();
    world.all_gather(inside, in_place).wait();
    on_type(type, [&]<class T>() {
      const auto expected = [&](i64 i) { return number<T>(static_cast<int>(i / count), i % count); };
      expect_bits<T>(full, expected, "all_gather");
      expect_bits<T>(in_place, expected, "all_gather in place");
    });
  });
}

TEST_P(CommunicatorTest, BroadcastCopiesFromAnyRoot) {
  run_all([](Communicator& world, Device& device, DType type, i64 count) {
    for (int root = 0; root < world.size(); ++root) {
      Tensor t = make(type, count, world.rank(), device);
      world.broadcast(t, root).wait();
      on_type(type, [&]<class T>() {
        expect_bits<T>(
            t, [&](i64 i) { return number<T>(root, i); }, "broadcast");
      });
    }
  });
}

TEST_P(CommunicatorTest, AllToAllExchangesParts) {
  run_all([](Communicator& world, Device& device, DType type, i64 count) {
    const Tensor in = make(type, count * world.size(), world.rank(), device);
    Tensor out = Tensor::empty({count * world.size()}, type, device);
    world.all_to_all(in, out).wait();
    on_type(type, [&]<class T>() {
      const auto expected = [&](i64 i) {
        return number<T>(static_cast<int>(i / count), world.rank() * count + i % count);
      };
      expect_bits<T>(out, expected, "all_to_all");
    });
  });
}

/// Returns the number of elements from rank `source` to rank `destination`: any of kCounts except the largest, which
/// one pair of ranks uses.
i64 uneven_count(int source, int destination, int ranks) {
  if (source == ranks - 1 && destination == 0) return kCounts[4];
  return kCounts[(source * 3 + destination * 2 + source * destination) % 4];
}

/// Exchange in which every rank sends overlapping parts and receives them in a different order, with gaps.
struct UnevenExchange {
  UnevenExchange(Communicator& world, Device& device, DType type, int n) : number(n) {
    i64 num_sent = 0, end = 3;
    const int ranks = world.size(), me = world.rank();
    receive.resize(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      send.push_back({first_of(me, r), uneven_count(me, r, ranks)});
      num_sent = std::max(num_sent, send.back().first + send.back().count);
    }
    for (int k = 0; k < ranks; ++k) {
      const int r = (ranks - k + me) % ranks;
      receive[static_cast<std::size_t>(r)] = {end, uneven_count(r, me, ranks)};
      end += receive[static_cast<std::size_t>(r)].count + k % 2;
    }
    in = make(type, num_sent, me + number, device);
    out = make(type, end + 2, 99, device);
  }
  static i64 first_of(int source, int destination) { return source + 5 * (destination % 3); }

  /// Checks received elements bitwise, and that the gaps are unchanged.
  void expect_received(const Communicator& world) const {
    on_type(out.dtype(), [&]<class T>() {
      const auto expected = [&](i64 i) {
        for (int r = 0; r < world.size(); ++r) {
          const auto [first, count] = receive[static_cast<std::size_t>(r)];
          if (i >= first && i < first + count)
            return test::number<T>(r + number, first_of(r, world.rank()) + i - first);
        }
        return test::number<T>(99, i);
      };
      expect_bits<T>(out, expected, "all_to_all_v");
    });
  }

  int number;
  std::vector<Part> send, receive;
  Tensor in, out;
};

TEST_P(CommunicatorTest, AllToAllVExchangesUnevenParts) {
  run([](Communicator& world, Device& device) {
    for (const DType type : kTypes) {
      UnevenExchange x(world, device, type, 0);
      world.all_to_all_v(x.in, x.send, x.out, x.receive).wait();
      x.expect_received(world);
    }
  });
}

TEST_P(CommunicatorTest, AllToAllVSupportsSeveralExchangesInFlight) {
  run([](Communicator& world, Device& device) {
    std::vector<UnevenExchange> exchanges;
    std::vector<Work> works;
    Tensor sum = filled<i64>(1, world.rank(), device);
    for (int k = 0; k < 4; ++k) {
      exchanges.emplace_back(world, device, k % 2 ? DType::F32 : DType::BF16, 10 * k);
      UnevenExchange& x = exchanges.back();
      works.push_back(world.all_to_all_v(x.in, x.send, x.out, x.receive));
    }
    world.all_reduce(sum, ReduceOp::Sum).wait();
    const bool backwards = world.rank() % 2 == 1;
    for (int k = 0; k < 4; ++k) works[backwards ? 3 - k : k].wait();
    for (const UnevenExchange& x : exchanges) x.expect_received(world);
    EXPECT_EQ(read_values<i64>(sum)[0], world.size() * (world.size() - 1) / 2);
  });
}

TEST_P(CommunicatorTest, AllToAllVAcceptsEmptyParts) {
  run([](Communicator& world, Device& device) {
    // All ranks send to the last rank, then no rank sends anything.
    const int last = world.size() - 1;
    for (const i64 count : {5, 0}) {
      std::vector<Part> send(static_cast<std::size_t>(world.size())), receive(send);
      send.back().count = count;
      for (int r = 0; world.rank() == last && r <= last; ++r) receive[static_cast<std::size_t>(r)] = {r * count, count};
      const Tensor in = make(DType::F32, count, world.rank(), device);
      Tensor out = Tensor::empty({world.rank() == last ? world.size() * count : 0}, DType::F32, device);
      world.all_to_all_v(in, send, out, receive).wait();
      expect_bits<float>(
          out, [&](i64 i) { return number<float>(static_cast<int>(i / 5), i % 5); }, "what all sent");
    }
  });
}

TEST_P(CommunicatorTest, MessagesArriveInOrder) {
  run([](Communicator& world, Device& device) {
    // Every rank first sends everything to all others: no send may wait for its receive.
    constexpr i64 kSizes[]{3, 0, 300000, 1, 17};
    for (int peer = 0; peer < world.size(); ++peer) {
      if (peer == world.rank()) continue;
      for (const i64 count : kSizes) {
        Tensor t = make(DType::F32, count, world.rank() * 10 + peer, device);
        world.send(t, peer);
        write_values(std::vector<float>(static_cast<std::size_t>(count), -1), t);  // the message must be a copy
      }
    }
    for (int peer = 0; peer < world.size(); ++peer) {
      if (peer == world.rank()) continue;
      std::vector<Tensor> received;
      std::vector<Work> works;
      for (const i64 count : kSizes) {
        received.push_back(Tensor::empty({count}, DType::F32, device));
        works.push_back(world.recv(received.back(), peer));
      }
      while (!works.empty()) {  // waiting in a different order must not change the result
        works.back().wait();
        works.pop_back();
      }
      for (const Tensor& t : received)
        expect_bits<float>(
            t, [&](i64 i) { return number<float>(peer * 10 + world.rank(), i); }, "message");
    }
  });
}

TEST_P(CommunicatorTest, ReceivesMayBePostedBeforeSends) {
  run([](Communicator& world, Device& device) {
    const int next = (world.rank() + 1) % world.size(), last = (world.rank() + world.size() - 1) % world.size();
    if (world.size() == 1) return;
    Tensor from_last = Tensor::empty({5}, DType::I64, device), from_next = Tensor::empty({6}, DType::BF16, device);
    Work forward = world.recv(from_last, last), backward = world.recv(from_next, next);
    world.send(make(DType::I64, 5, world.rank(), device), next).wait();
    world.send(make(DType::BF16, 6, world.rank(), device), last).wait();
    backward.wait();
    forward.wait();
    expect_bits<i64>(
        from_last, [&](i64 i) { return number<i64>(last, i); }, "from the last");
    expect_bits<BFloat16>(
        from_next, [&](i64 i) { return number<BFloat16>(next, i); }, "from the next");
  });
}

/// A send must not wait for its receive, and later operations must not delay the message. Rank 0 waits in a collective
/// for rank 2, which joins only after rank 1 has received the message of rank 0.
TEST_P(CommunicatorTest, MessagesProgressWhileSenderIsInCollective) {
  run([](Communicator& world, Device& device) {
    if (world.size() < 3) return;
    constexpr i64 kCount = 1 << 20;  // more than MPI sends eagerly
    const auto group = world.split(world.rank() % 2, 0);
    Tensor sum = Tensor::zeros({1}, DType::I64, device), word = Tensor::zeros({1}, DType::I64, device);
    group->all_reduce(sum, ReduceOp::Sum).wait();
    if (world.rank() == 0) world.send(make(DType::I32, kCount, 0, device), 1).wait();
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until rank 0 is in the collective
      Tensor message = Tensor::empty({kCount}, DType::I32, device);
      world.recv(message, 0).wait();
      expect_bits<i32>(
          message, [](i64 i) { return number<i32>(0, i); }, "message");
      world.send(word, 2).wait();
    }
    if (world.rank() == 2) world.recv(word, 1).wait();
    group->all_reduce(sum, ReduceOp::Sum).wait();
  });
}

TEST_P(CommunicatorTest, WaitsAreAllowedInAnyOrder) {
  run([](Communicator& world, Device& device) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int k = 0; k < 6; ++k) {
      tensors.push_back(make(DType::F32, 100 + k, world.rank() + 10 * k, device));
      works.push_back(k % 2 ? world.broadcast(tensors[k], k % world.size())
                            : world.all_reduce(tensors[k], ReduceOp::Max));
    }
    const bool backwards = world.rank() % 2 == 1;
    for (int k = 0; k < 6; ++k) works[backwards ? 5 - k : k].wait();
    for (int k = 0; k < 6; ++k) {
      const auto expected = [&](i64 i) {
        if (k % 2) return number<float>(k % world.size() + 10 * k, i);
        float maximum = number<float>(10 * k, i);
        for (int r = 1; r < world.size(); ++r) maximum = std::max(maximum, number<float>(r + 10 * k, i));
        return maximum;
      };
      expect_bits<float>(tensors[k], expected, str("work ", k));
    }
  });
}

TEST_P(CommunicatorTest, SplitOrdersByKeyThenRank) {
  run([](Communicator& world, Device& device) {
    const int color = world.rank() % 2;
    const auto half = world.split(color, -world.rank());
    const int members = (world.size() + 1 - color) / 2;
    ASSERT_EQ(half->size(), members);
    EXPECT_EQ(half->rank(), members - 1 - world.rank() / 2);
    Tensor t = filled<i64>(1, world.rank(), device);
    Tensor all = Tensor::empty({members}, DType::I64, device);
    half->all_gather(t, all).wait();
    const std::vector<i64> ranks = read_values<i64>(all);
    for (int r = 0; r < members; ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)], color + 2 * (members - 1 - r));

    // Subgroups of subgroups work, and traffic in one group does not disturb another.
    const auto single = half->split(half->rank(), 0);
    EXPECT_EQ(single->size(), 1);
    single->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(read_values<i64>(t)[0], world.rank());
    const auto same = world.split(3, 0);
    EXPECT_EQ(same->rank(), world.rank());
    same->all_reduce(t, ReduceOp::Sum).wait();
    EXPECT_EQ(read_values<i64>(t)[0], world.size() * (world.size() - 1) / 2);
  });
}

TEST_P(CommunicatorTest, SubgroupSumsFollowSubgroupRankOrder) {
  run([](Communicator& world, Device& device) {
    const auto reversed = world.split(0, -world.rank());
    Tensor t = make(DType::F32, 3001, reversed->rank(), device);
    reversed->all_reduce(t, ReduceOp::Sum).wait();
    expect_sums<float>(
        t, world.size(), 0, [&](i64 i) { return reduced<float>(ReduceOp::Sum, world.size(), i); }, "sum");
  });
}

TEST_P(CommunicatorTest, RunsManySmallOperations) {
  run([](Communicator& world, Device& device) {
    for (i64 k = 0; k < 300; ++k) {
      Tensor t = filled(1, k, device);
      world.all_reduce(t, ReduceOp::Sum).wait();
      ASSERT_EQ(read_values<i64>(t)[0], k * world.size());
      if (k % 50 == 0) world.barrier();
    }
  });
}

TEST_P(CommunicatorTest, GroupOutlivesDevice) {
  run([](Communicator& world, Device&) {
    for (const i64 count : {1000, 10, 300000}) {
      CpuDevice other;
      const Tensor sent = make(DType::F32, count, world.rank(), other);
      Tensor received = Tensor::empty({count}, DType::F32, other);
      if (world.size() == 1) return;
      const int next = (world.rank() + 1) % world.size(), last = (world.rank() + world.size() - 1) % world.size();
      world.send(sent, next).wait();
      world.recv(received, last).wait();
      expect_bits<float>(
          received, [&](i64 i) { return number<float>(last, i); }, "message");
    }
  });
}

TEST_P(CommunicatorTest, ThrowsOnMismatchedSizes) {
  run([](Communicator& world, Device& device) {
    Tensor one = Tensor::zeros({3}, DType::F32, device),
           other = Tensor::zeros({3 * world.size() + 1}, DType::F32, device);
    EXPECT_THROW(world.all_gather(one, other), Error);
    EXPECT_THROW(world.reduce_scatter(other, one), Error);
    EXPECT_THROW(world.all_to_all(one, other), Error);
    const auto n = static_cast<std::size_t>(world.size());
    const std::vector<Part> none(n), beyond(n, Part{1, 3}), few(n + 1);
    std::vector<Part> own(n), same(n, Part{1, 1});
    own[static_cast<std::size_t>(world.rank())].count = 2;
    EXPECT_THROW(world.all_to_all_v(one, few, other, none), Error);
    EXPECT_THROW(world.all_to_all_v(one, beyond, other, beyond), Error);
    EXPECT_THROW(world.all_to_all_v(one, own, other, none), Error);
    if (n > 1) {  // overlapping receive ranges
      EXPECT_THROW(world.all_to_all_v(one, same, other, same), Error);
    }
    EXPECT_THROW(world.broadcast(one, world.size()), Error);
    EXPECT_THROW(world.send(one, world.rank()), Error);
    EXPECT_THROW(world.recv(one, world.size()), Error);
    EXPECT_THROW(world.split(-1, 0), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest, testing::ValuesIn(backends()),
                         [](const auto& backend) { return backend.param.name; });

}  // namespace
}  // namespace mcpp::test
