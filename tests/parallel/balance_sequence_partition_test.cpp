// Partition of the sequences of a microbatch over ranks: balanced for any packed documents, and such that keys
// are sent only where they are visible.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/strings.h"
#include "parallel/cp/sequence_partition.h"

namespace mcpp {
namespace {

/// Returns a microbatch of samples packed from documents of these lengths. The last document is truncated.
AttentionWork pack_documents(i64 seq, const std::vector<std::vector<i64>>& samples,
                             std::vector<KeyLimits> layers = {{}}) {
  AttentionWork work{.seq_length = seq, .batch = static_cast<i64>(samples.size()), .starts = {}, .layers = layers};
  work.starts.resize(static_cast<std::size_t>(seq * work.batch));
  for (i64 b = 0; b < work.batch; ++b) {
    i64 start = 0;
    for (const i64 length : samples[static_cast<std::size_t>(b)]) {
      for (i64 p = start; p < std::min(seq, start + length); ++p)
        work.starts[static_cast<std::size_t>(p * work.batch + b)] = static_cast<i32>(start);
      start += length;
    }
  }
  return work;
}

/// Returns a length distribution like that of web pages and books: most are short, some fill samples.
std::vector<i64> mixed_lengths(i64 seq, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> length(6.2, 1.3);
  std::vector<i64> lengths;
  for (i64 sum = 0; sum < seq; sum += lengths.back()) lengths.push_back(static_cast<i64>(length(random)) + 16);
  return lengths;
}

double max_to_min_cost(const SequencePartition& ranks, const AttentionWork& work, const SamplePartition& partition) {
  const std::vector<i64> costs = member_costs(ranks, work, partition);
  return static_cast<double>(*std::max_element(costs.begin(), costs.end())) /
         static_cast<double>(*std::min_element(costs.begin(), costs.end()));
}

TEST(BalanceSequencePartitionTest, IsZigzagForSamplesOfOneDocument) {
  for (const i64 n : {2, 3, 4, 8}) {
    const SequencePartition ranks{.heads = 1, .rings = n};
    const SamplePartition partition = balance_sequence_partition(
                              ranks, {.seq_length = 2 * n * 100, .starts = {}, .layers = {{}, {}}}),
                          zigzag = SamplePartition::zigzag(ranks, 2 * n * 100);
    ASSERT_EQ(partition.runs(), 2);
    for (i64 rank = 0; rank < n; ++rank) EXPECT_EQ(partition.rank_positions(rank), zigzag.rank_positions(rank));
  }
}

TEST(BalanceSequencePartitionTest, KeepsShortDocumentsAndWindowsTogether) {
  const SequencePartition ranks{.heads = 1, .rings = 4};
  const SamplePartition documents =
      balance_sequence_partition(ranks, pack_documents(8192, {std::vector<i64>(16, 512)}));
  EXPECT_EQ(documents.runs(), 1);
  for (i64 owner = 0; owner < 4; ++owner) EXPECT_EQ(documents.reach(owner, 0), 0) << "no document is split";
  const SamplePartition windows =
      balance_sequence_partition(ranks, {.seq_length = 32768, .starts = {}, .layers = {{.window = 256}}});
  EXPECT_EQ(windows.runs(), 1);
  for (i64 owner = 0; owner < 4; ++owner) EXPECT_EQ(windows.reach(owner, 256), owner == 3 ? 0 : 1);
  EXPECT_EQ(
      balance_sequence_partition(ranks, {.seq_length = 32768, .starts = {}, .layers = {{.window = 256}, {}}}).runs(), 2)
      << "a layer without a window costs most";
}

TEST(BalanceSequencePartitionTest, CountsKeysOfChunksOnly) {
  const SequencePartition ranks{.heads = 1, .rings = 4};
  const AttentionWork work{.seq_length = 32768, .layers = {{.chunk = 8192}}};
  const SamplePartition partition = balance_sequence_partition(ranks, work);
  EXPECT_EQ(partition.runs(), 1) << "each rank has one chunk";
  const std::vector<i64> costs = member_costs(ranks, work, partition);
  EXPECT_EQ(costs[0], 8192 * 8193 / 2 + 64 * 8192);
  EXPECT_EQ(std::count(costs.begin(), costs.end(), costs[0]), 4);
}

TEST(BalanceSequencePartitionTest, BalancesDocumentsOfAllLengths) {
  double worst = 1, worst_zigzag = 1;
  for (const i64 seq : {8192, 32768}) {
    for (const i64 n : {2, 4, 8}) {
      const SequencePartition ranks{.heads = 1, .rings = n};
      for (unsigned seed = 1; seed <= 20; ++seed) {
        const AttentionWork work =
            pack_documents(seq, {mixed_lengths(seq, seed)},
                           seed % 3 == 0 ? std::vector<KeyLimits>{{}, {.window = 1024}} : std::vector<KeyLimits>{{}});
        worst = std::max(worst, max_to_min_cost(ranks, work, balance_sequence_partition(ranks, work)));
        worst_zigzag = std::max(worst_zigzag, max_to_min_cost(ranks, work, SamplePartition::zigzag(ranks, seq)));
      }
    }
  }
  EXPECT_LT(worst, 1.05);
  EXPECT_GT(worst_zigzag, 2) << "these documents test nothing";
}

/// Covers hundreds of tiny documents, several samples together, and partitions that are also exchanged for heads.
TEST(BalanceSequencePartitionTest, AssignsEveryPositionToOneRank) {
  for (const SequencePartition ranks : {SequencePartition{1, 2}, {1, 3}, {2, 2}, {4, 2}, {2, 4}}) {
    const i64 seq = 64 * 16 * ranks.ranks();
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const AttentionWork work =
          pack_documents(seq, {mixed_lengths(seq, seed), std::vector<i64>(static_cast<std::size_t>(seq), 3)});
      const SamplePartition partition = balance_sequence_partition(ranks, work);
      std::vector<int> owners(static_cast<std::size_t>(seq), 0);
      for (i64 rank = 0; rank < ranks.ranks(); ++rank) {
        const PositionRanges positions = partition.rank_positions(rank);
        for (i64 row = 0; row < seq / ranks.ranks(); ++row) ++owners.at(static_cast<std::size_t>(positions.at(row)));
      }
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), seq);
    }
  }
}

/// Compares with the visibility of every pair of positions.
TEST(SamplePartitionTest, ReachMatchesPairwiseVisibility) {
  constexpr i64 kSeq = 96;
  const SequencePartition ranks{.heads = 1, .rings = 4};
  for (const i64 window : {0, 1, 5, 30}) {
    const AttentionWork work = pack_documents(kSeq, {{10, 40, 3, 20, 23}, {50, 46}}, {{.window = window}});
    const std::vector<i64> chunks{0, 5, 1, 2, 3, 7, 4, 6};
    std::vector<i64> first_keys;
    for (i64 chunk = 0; chunk < 8; ++chunk)
      first_keys.push_back(std::min(work.starts[static_cast<std::size_t>(24 * chunk)],
                                    work.starts[static_cast<std::size_t>(24 * chunk + 1)]));
    const SamplePartition partition(ranks, kSeq, chunks, first_keys);
    for (i64 querier = 0; querier < 4; ++querier) {
      for (i64 owner = 0; owner < 4; ++owner) {
        bool sees = false;
        for (i64 i = 0; i < 24; ++i) {
          for (i64 j = 0; j < 24; ++j) {
            const i64 query = partition.rank_positions(querier).at(i), key = partition.rank_positions(owner).at(j);
            for (i64 b = 0; b < 2; ++b)
              sees |= key <= query && key >= work.starts[static_cast<std::size_t>(2 * query + b)] &&
                      (window == 0 || query - key < window);
          }
        }
        EXPECT_EQ(partition.sees(querier, owner, window), sees)
            << querier << " sees " << owner << ", window " << window;
      }
    }
  }
}

}  // namespace
}  // namespace mcpp
