// Moments of a schedule with the most activations in flight, against a simulation of the full schedule with actual
// byte counts.
#include "model/peak_activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/philox.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {
namespace {

/// Arbitrary byte counts of a chunk.
struct Bytes {
  i64 saved, waiting, working, working_delayed_wgrad;
};

i64 random_bytes(int trial, int chunk, int kind) {
  return static_cast<i64>(philox_key(static_cast<u64>(trial), "bytes", static_cast<u64>(10 * chunk + kind)) % 1000);
}

std::vector<Bytes> random_chunks(int trial, int count) {
  std::vector<Bytes> chunks;
  for (int i = 0; i < count; ++i)
    chunks.push_back(
        {random_bytes(trial, i, 0), random_bytes(trial, i, 1), random_bytes(trial, i, 2), random_bytes(trial, i, 3)});
  return chunks;
}

struct Peaks {
  i64 in_backward = 0, after_forward = 0;
  bool operator==(const Peaks&) const = default;
};

/// Simulates the schedule without messages, whose memory is counted separately.
Peaks simulated_peaks(const Schedule& schedule, int rank, const std::vector<Bytes>& chunks) {
  i64 saved = 0, waiting = 0;
  Peaks peak;
  for (const Action& action : schedule.per_rank[static_cast<std::size_t>(rank)]) {
    const Bytes& chunk = chunks[static_cast<std::size_t>(schedule.chunk_of(action.stage))];
    if (action.kind == ActionKind::Forward) peak.after_forward = std::max(peak.after_forward, saved += chunk.saved);
    if (computes_input_grad(action.kind)) {
      const bool delays_wgrad = action.kind == ActionKind::BackwardInput;
      peak.in_backward =
          std::max(peak.in_backward, saved + waiting + (delays_wgrad ? chunk.working_delayed_wgrad : chunk.working));
      saved -= chunk.saved;
      waiting += delays_wgrad ? chunk.waiting : 0;
    }
    if (action.kind == ActionKind::BackwardWeight) waiting -= chunk.waiting;
  }
  return peak;
}

Peaks peaks_of_candidates(const PeakCandidates& moments, const std::vector<Bytes>& chunks) {
  const auto bytes = [&](const std::vector<i64>& counts, i64 Bytes::*kind) {
    i64 sum = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) sum += counts[i] * chunks[i].*kind;
    return sum;
  };
  Peaks peak;
  for (const std::vector<i64>& saved : moments.after_forward)
    peak.after_forward = std::max(peak.after_forward, bytes(saved, &Bytes::saved));
  for (const PeakCandidate& moment : moments.in_backward) {
    const Bytes& chunk = chunks[static_cast<std::size_t>(moment.chunk)];
    peak.in_backward =
        std::max(peak.in_backward, bytes(moment.saved, &Bytes::saved) + bytes(moment.waiting, &Bytes::waiting) +
                                       (moment.delays_wgrad ? chunk.working_delayed_wgrad : chunk.working));
  }
  return peak;
}

void expect_candidates_contain_peak(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const PeakCandidates moments = find_peak_candidates(schedule, rank);
    for (int trial = 0; trial < 10; ++trial) {
      const std::vector<Bytes> chunks = random_chunks(trial, schedule.chunks_per_rank);
      EXPECT_EQ(peaks_of_candidates(moments, chunks), simulated_peaks(schedule, rank, chunks))
          << "rank " << rank << ", trial " << trial;
    }
  }
}

TEST(PeakCandidatesTest, ContainPeakOfEverySchedule) {
  for (const ScheduleRow& row : kSchedules)
    for (const int ranks : {2, 4})
      for (const int microbatches : {4, 12})
        for (int chunks = row.min_chunks; chunks <= (row.allows_more_chunks ? 4 : row.min_chunks); ++chunks) {
          SCOPED_TRACE(str(row.name, ", ranks ", ranks, ", microbatches ", microbatches, ", chunks ", chunks));
          expect_candidates_contain_peak(row.build({.ranks = ranks, .microbatches = microbatches, .chunks = chunks}));
        }
}

/// Candidates are evaluated for many byte counts, so there must be few of them.
TEST(PeakCandidatesTest, NumberIsSmall) {
  using testing::ElementsAre;
  for (int rank = 0; rank < 4; ++rank) {
    const PeakCandidates moments = find_peak_candidates(one_f_one_b(4, 16), rank);
    EXPECT_THAT(moments.after_forward, ElementsAre(ElementsAre(4 - rank)));
    EXPECT_THAT(moments.in_backward, ElementsAre(testing::Field(&PeakCandidate::saved, ElementsAre(4 - rank))));
  }
  const Schedule interleaved = interleaved_1f1b(8, 32, 4);
  EXPECT_LT(8 * find_peak_candidates(interleaved, 0).in_backward.size(), interleaved.per_rank.front().size());
}

/// A rank receives the next gradient while it computes the previous one, if another rank sends it.
TEST(PeakCandidatesTest, IncludeConcurrentReceives) {
  const auto receives = [](int ranks, int rank) {
    return find_peak_candidates(one_f_one_b(ranks, 4), rank).in_backward.front().receives;
  };
  using enum ReceivedMessage;
  EXPECT_EQ(receives(1, 0), None);
  EXPECT_EQ(receives(2, 0), BetweenLastStages);
  EXPECT_EQ(receives(2, 1), BetweenLastStages);
  EXPECT_EQ(receives(3, 0), Hidden);
  EXPECT_EQ(receives(3, 1), BetweenLastStages);
  EXPECT_EQ(receives(3, 2), BetweenLastStages);
}

}  // namespace
}  // namespace mcpp
