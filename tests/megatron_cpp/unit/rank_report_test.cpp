#include "megatron_cpp/monitor/rank_report.h"

#include <gtest/gtest.h>

#include "comm/local.h"
#include "megatron_cpp/monitor/console_sink.h"

namespace mcpp {
namespace {

constexpr auto index_of(MemoryClass c) {
  return static_cast<std::size_t>(c);
}

/// Returns a rank with some bytes of some classes, in each tier.
RankStats rank_stats(double bytes) {
  RankStats rank{.peak_memory_bytes = 3 * bytes,
                 .bubble = bytes / 16384,
                 .exposed_communication = bytes / 8192,
                 .compute_ms = bytes + 1};
  rank.peak_by_class[index_of(MemoryClass::Params)] = bytes;
  rank.peak_by_class[index_of(MemoryClass::Activations)] = 2 * bytes;
  rank.offloaded[index_of(MemoryClass::Params)].in_host = 4096;
  rank.offloaded[index_of(MemoryClass::OptimizerState)].on_disk = i64{1} << 30;
  return rank;
}

TEST(MemoryTableTest, ShowsOnlyUsedClassesAndTiers) {
  EXPECT_EQ(memory_table({rank_stats(1024), rank_stats(2048)}),
            "  rank   peak memory  parameters     in host  optimizer state     on disk  activations\n"
            "     0      3.00 KiB    1.00 KiB    4.00 KiB              0 B    1.00 GiB     2.00 KiB\n"
            "     1      6.00 KiB    2.00 KiB    4.00 KiB              0 B    1.00 GiB     4.00 KiB\n");
}

TEST(RankStatsTest, AreGatheredCompletely) {
  run_local_ranks(3, [](Communicator& world, int rank) {
    const std::vector<RankStats> ranks = gather_rank_stats(rank_stats(100.0 * (1 + rank)), world);
    EXPECT_EQ(ranks.empty(), rank != 0);
    if (rank != 0) return;
    ASSERT_EQ(ranks.size(), 3U);
    for (int r = 0; r < 3; ++r) {
      const RankStats expected = rank_stats(100.0 * (1 + r)), &found = ranks[static_cast<std::size_t>(r)];
      EXPECT_EQ(found.peak_memory_bytes, expected.peak_memory_bytes);
      EXPECT_EQ(found.bubble, expected.bubble);
      EXPECT_EQ(found.exposed_communication, expected.exposed_communication);
      EXPECT_EQ(found.compute_ms, expected.compute_ms);
      EXPECT_EQ(found.peak_by_class, expected.peak_by_class);
      for (std::size_t c = 0; c < kMemoryClasses; ++c) {
        EXPECT_EQ(found.offloaded[c].in_host, expected.offloaded[c].in_host);
        EXPECT_EQ(found.offloaded[c].on_disk, expected.offloaded[c].on_disk);
      }
    }
  });
}

}  // namespace
}  // namespace mcpp
