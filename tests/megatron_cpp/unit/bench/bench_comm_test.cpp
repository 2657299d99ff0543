#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "comm/local.h"
#include "comm/metered.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/commands/commands.h"

namespace mcpp {
namespace {

TEST(BenchCommTest, TimesAllOperationsAndSizesOnBothSides) {
  const CommTiming timing{.smallest = 1000, .largest = 16000, .rounds = 2, .repeats = 3};
  constexpr i64 kSizes[]{996, 3996, 15996};  // sizes of complete shards
  std::array<std::vector<CommRow>, 3> rows;
  run_local_ranks(3, [&](Communicator& world, int rank) {
    CpuDevice device;
    const auto meter = std::make_shared<CommMeter>(), baseline_meter = std::make_shared<CommMeter>();
    const auto group = make_metered(world.split(0, rank), meter),
               baseline = make_metered(world.split(0, rank), baseline_meter);
    rows[rank] = bench_comm({*group, device}, {*baseline, device}, timing);
    for (const CommOp op : {CommOp::AllGather, CommOp::ReduceScatter, CommOp::Broadcast, CommOp::AllToAll}) {
      EXPECT_GE((*baseline_meter)[op].calls, 3 * 2 * (1 + 3));
      EXPECT_EQ((*meter)[op].calls, (*baseline_meter)[op].calls);
      EXPECT_EQ((*meter)[op].bytes, (*baseline_meter)[op].bytes);
    }
    EXPECT_EQ((*meter)[CommOp::Send].calls, (*meter)[CommOp::Recv].calls);
    EXPECT_EQ((*meter)[CommOp::Send].calls > 0, rank != 1);  // the first and the last rank
  });
  ASSERT_EQ(rows[0].size(), 7 * 3U);
  for (std::size_t k = 0; k < rows[0].size(); ++k) {
    const CommRow& row = rows[0][k];
    EXPECT_EQ(row.bytes, kSizes[k % 3]);
    EXPECT_GT(row.seconds, 0);
    EXPECT_GT(row.baseline_seconds, 0);
    for (int rank : {1, 2}) {
      EXPECT_EQ(row.operation, rows[rank][k].operation);
      EXPECT_EQ(row.seconds, rows[rank][k].seconds);
      EXPECT_EQ(row.baseline_seconds, rows[rank][k].baseline_seconds);
    }
  }
}

TEST(BenchCommTest, TimesOnlySelectedOperations) {
  run_local_ranks(2, [&](Communicator& world, int) {
    CpuDevice device;
    const BenchGroup side{world, device};
    const auto rows = bench_comm(side, side, {.largest = 1 << 10, .operations = {"send_recv", "all_gather"}});
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].operation, "all_gather");
    EXPECT_EQ(rows[1].operation, "send_recv");
  });
}

TEST(BenchCommTest, TableShowsTimesRatioAndBandwidth) {
  const CommRow row{.operation = "all_reduce", .bytes = 16 << 20, .seconds = 1e-3, .baseline_seconds = 3.5e-3};
  EXPECT_THAT(comm_table({row}),
              testing::HasSubstr("all_reduce       16.00 MiB     1000.00     3500.00    3.50   16.78"));
}

TEST(BenchCommTest, RejectsOutOfRangeOptions) {
  const auto refusal = [](const std::string& option) {
    std::array<std::string, 2> errors;
    run_local_ranks(2, [&](Communicator& world, int rank) {
      Log log;
      try {
        run_program(std::vector<std::string>{"bench", "comm", option}, log, {.ranks = world});
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  for (const char* option : {"--repeats=4294967296", "--rounds=9223372036854775807", "--repeats=0"})
    EXPECT_THAT(refusal(option), testing::HasSubstr("at most 1000000")) << option;
  EXPECT_THAT(refusal("--largest=9223372036854775807"), testing::HasSubstr("largest"));
  EXPECT_THAT(refusal("--largest=999999999999"), testing::HasSubstr("a smaller --largest needs less"));
  EXPECT_THAT(refusal("--smallest=268435456"), testing::HasSubstr("is more than --largest="));
  EXPECT_THAT(refusal("--operations=all_reduce,gather"), testing::HasSubstr("\"gather\": must be one of all_reduce, "));
}

TEST(BenchCommTest, RejectsSingleRank) {
  CpuDevice device;
  const auto self = make_self_communicator();
  EXPECT_THROW(bench_comm({*self, device}, {*self, device}, {}), Error);
}

}  // namespace
}  // namespace mcpp
