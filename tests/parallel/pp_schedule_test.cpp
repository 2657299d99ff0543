#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "parallel/pp/draw.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/simulate.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Timeline run(const Schedule& schedule, const ScheduleCosts& costs = {}) {
  return simulate(lower(schedule), costs);
}

/// Returns the idle time of the rank that waits longest.
double idle(const Timeline& timeline) {
  return *std::max_element(timeline.idle.begin(), timeline.idle.end());
}

/// Returns the peak number of microbatches in memory, counting the activations of all chunks of a rank as one.
double memory(const Schedule& schedule, const Timeline& timeline) {
  return static_cast<double>(timeline.max_in_flight()) / schedule.chunks_per_rank;
}

std::string rejection(const Schedule& schedule) {
  try {
    simulate(schedule);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleTest, IsValidForEverySize) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 30; ++m) {
      for (const Schedule& schedule : {gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), zb_v(p, m), dualpipe_v(p, m)}) {
        ASSERT_NO_THROW(run(schedule)) << p << " ranks, " << m << " microbatches";
      }
      for (int v = 2; v <= 4; ++v)
        if (p > 1 && m % p == 0) {
          ASSERT_NO_THROW(run(interleaved_1f1b(p, m, v))) << p << " ranks, " << m << " microbatches, " << v;
        }
    }
  }
}

TEST(CombinedPassesTest, AreValidForEverySize) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 30; ++m) {
      for (const Schedule& schedule : {one_f_one_b(p, m), zb_v(p, m)})
        ASSERT_NO_THROW(run(combine_passes(schedule))) << p << " ranks, " << m << " microbatches";
      for (int v = 2; v <= 4; ++v)
        if (p > 1 && m % p == 0) {
          ASSERT_NO_THROW(run(combine_passes(interleaved_1f1b(p, m, v))))
              << p << " ranks, " << m << " microbatches, " << v;
        }
    }
  }
}

TEST(CombinedPassesTest, TakeTimeOf1F1BWithMoreMemory) {
  for (const int p : {1, 2, 4, 8}) {
    for (const int m : {1, 2, 5, 8, 16, 40}) {
      const Timeline alone = run(one_f_one_b(p, m)), pairs = run(combine_passes(one_f_one_b(p, m)));
      EXPECT_DOUBLE_EQ(pairs.makespan, alone.makespan) << p << " ranks, " << m << " microbatches";
      for (int rank = 0; rank < p; ++rank)
        EXPECT_EQ(pairs.peak_in_flight[rank], std::min(m, 2 * (p - rank))) << p << " " << m << " " << rank;
      if (p == 1 || m % p != 0) continue;
      EXPECT_DOUBLE_EQ(run(combine_passes(interleaved_1f1b(p, m, 2))).makespan, run(interleaved_1f1b(p, m, 2)).makespan)
          << p << " ranks, " << m << " microbatches";
    }
  }
}

TEST(CombinedPassesTest, IncludeAlmostAllPassesOfLongSchedules) {
  EXPECT_EQ(combined_fraction(one_f_one_b(1, 8)), 0);
  EXPECT_EQ(combined_fraction(combine_passes(one_f_one_b(1, 1))), 0);
  EXPECT_DOUBLE_EQ(combined_fraction(combine_passes(one_f_one_b(1, 8))), 7.0 / 8);
  EXPECT_GT(combined_fraction(combine_passes(one_f_one_b(4, 64))), 0.9);
  EXPECT_GT(combined_fraction(combine_passes(interleaved_1f1b(4, 64, 2))), 0.9);
  EXPECT_GT(combined_fraction(combine_passes(zb_v(4, 64))), 0.75);
}

/// Both inputs arrive before a pair, and both results are sent after it.
TEST(CombinedPassesTest, AreAdjacentInLoweredSchedule) {
  const Schedule lowered = lower(combine_passes(one_f_one_b(3, 8)));
  const std::vector<Action>& actions = lowered.per_rank[1];
  std::size_t i = 0;
  while (!is_pass_pair(lowered, 1, i)) ++i;
  std::vector<ActionKind> kinds;
  for (std::size_t k = i - 2; k < i + 4; ++k) kinds.push_back(actions[k].kind);
  using enum ActionKind;
  EXPECT_THAT(kinds, ElementsAre(RecvForward, RecvBackward, Forward, Backward, SendForward, SendBackward));
  EXPECT_EQ(actions[i].microbatch, 3);
  EXPECT_EQ(actions[i + 1].microbatch, 0);
}

// The last stage takes twice as long: the first waits for it after its second forward, and once more for each
// microbatch.
TEST(ScheduleTest, SimulatesStagesOfDifferentDurations) {
  const std::vector<ScheduleCosts> costs{{}, {.forward = 2, .backward_input = 2, .backward_weight = 2}};
  const Timeline timeline = simulate(lower(one_f_one_b(2, 3)), costs);
  // F on the first stage, then F and B of three microbatches on the last, then B on the first.
  EXPECT_DOUBLE_EQ(timeline.makespan, 1 + 3 * 6 + 2);
  EXPECT_THAT(timeline.busy, ElementsAre(9, 18));
  EXPECT_DOUBLE_EQ(timeline.idle[1], 0);
}

// Published: (p - 1) / (m + p - 1).
TEST(ScheduleTest, GPipeAnd1F1BHavePublishedBubble) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {1, 2, 3, 8, 33, 64}) {
      const double published = static_cast<double>(p - 1) / (m + p - 1);
      EXPECT_DOUBLE_EQ(run(gpipe(p, m)).bubble, published);
      EXPECT_DOUBLE_EQ(run(one_f_one_b(p, m)).bubble, published);
    }
}

// Published: (p - 1) / (v m + p - 1).
TEST(ScheduleTest, Interleaved1F1BHasPublishedBubble) {
  for (const int p : {2, 3, 4, 8, 16})
    for (const int rounds : {1, 2, 4})
      for (const int v : {2, 3, 4})
        EXPECT_DOUBLE_EQ(run(interleaved_1f1b(p, rounds * p, v)).bubble,
                         static_cast<double>(p - 1) / (v * rounds * p + p - 1))
            << p << " " << rounds << " " << v;
}

// Published, for F, B and W of equal duration: ZB-H1 has a third of the idle time of 1F1B with its memory.
TEST(ScheduleTest, ZbH1HasThirdOfIdleTimeOf1F1B) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {p, p + 1, 2 * p, 5 * p}) {
      const Schedule schedule = zb_h1(p, m);
      const Timeline timeline = run(schedule);
      EXPECT_DOUBLE_EQ(3 * idle(timeline), idle(run(one_f_one_b(p, m)))) << p << " " << m;
      EXPECT_LE(memory(schedule, timeline), p);
    }
}

// Published, for F, B and W of equal duration: ZB-V has no idle time, with the memory of 1F1B.
TEST(ScheduleTest, ZbVHasNoIdleTime) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {2 * p, 2 * p + 1, 5 * p}) {
      const Schedule schedule = zb_v(p, m);
      const Timeline timeline = run(schedule);
      EXPECT_DOUBLE_EQ(timeline.bubble, 0) << p << " " << m;
      EXPECT_LE(memory(schedule, timeline), p);
    }
}

// Published: memory for 2p + 1 chunks. Without overlap, the idle time is half of the published one for F, B and W of
// equal duration, because a backward pass is not slowed down by an overlapped forward pass.
TEST(ScheduleTest, DualPipeVHasPublishedMemoryAndHalfOfPublishedBubble) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {2 * p, 2 * p + 1, 5 * p}) {
      const Schedule schedule = dualpipe_v(p, m);
      const Timeline timeline = run(schedule);
      const double published = (p - 1) * (3 + 2 - 3.0);  // (p - 1) (F&B + B - 3W)
      EXPECT_DOUBLE_EQ(2 * idle(timeline), published) << p << " " << m;
      EXPECT_DOUBLE_EQ(timeline.bubble, *bubble_of_dualpipe_v({p, m, 2}, {})) << p << " " << m;
      EXPECT_LE(memory(schedule, timeline), p + 0.5);
    }
}

TEST(ScheduleTest, DualPipeVPairsForwardsWithBackwardsOfOtherMicrobatches) {
  const Schedule schedule = dualpipe_v(4, 20);
  for (const auto& actions : schedule.per_rank) {
    int pairs = 0;
    for (std::size_t i = 0; i + 1 < actions.size(); ++i)
      if (actions[i].kind == ActionKind::Forward && actions[i + 1].kind == ActionKind::Backward) {
        EXPECT_NE(actions[i].microbatch, actions[i + 1].microbatch);
        EXPECT_NE(actions[i].stage, actions[i + 1].stage);
        ++pairs;
      }
    EXPECT_GE(pairs, 2 * (20 - 2 * 4));
  }
}

TEST(ScheduleTest, GPipeAnd1F1BHavePublishedMemory) {
  for (const int p : {1, 2, 4, 8})
    for (const int m : {1, 3, 8, 20}) {
      EXPECT_EQ(run(gpipe(p, m)).max_in_flight(), m);
      const std::vector<int> peaks = run(one_f_one_b(p, m)).peak_in_flight;
      for (int rank = 0; rank < p; ++rank) EXPECT_EQ(peaks[rank], std::min(m, p - rank));
    }
}

TEST(ScheduleTest, AssignsStagesInLoopOrV) {
  const Schedule loop = interleaved_1f1b(4, 4, 2), v = zb_v(4, 8);
  for (int stage = 0; stage < 8; ++stage) {
    EXPECT_EQ(loop.rank_of(stage), stage % 4);
    EXPECT_EQ(v.rank_of(stage), stage < 4 ? stage : 7 - stage);
    for (const Schedule& schedule : {loop, v})
      EXPECT_EQ(schedule.stage_of(schedule.rank_of(stage), schedule.chunk_of(stage)), stage);
  }
  EXPECT_EQ(v.rank_of(0), v.rank_of(7));
}

TEST(ScheduleTest, BuildsLargeSchedulesInLessThanOneSecond) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
  constexpr double kLimit = 10;
#else
  constexpr double kLimit = 1;
#endif
  for (const auto& [kind, chunks] : {std::pair(ScheduleKind::GPipe, 1), std::pair(ScheduleKind::OneFOneB, 1),
                                     std::pair(ScheduleKind::Interleaved, 2), std::pair(ScheduleKind::ZbH1, 1),
                                     std::pair(ScheduleKind::ZbV, 2), std::pair(ScheduleKind::DualPipeV, 2)}) {
    const std::clock_t begin = std::clock();  // CPU time of this process only, because other tests share its cores
    run(make_schedule(kind, 64, 512, chunks));
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, kLimit) << enum_name(kind);
  }
}

TEST(ScheduleTest, ReportsImpossibleSchedules) {
  using test::input_error;
  EXPECT_EQ(input_error([] { gpipe(0, 0); }),
            "pipeline_model_parallel_size = 0 must be at least 1\nnum_microbatches = 0 must be at least 1");
  EXPECT_THAT(input_error([] { zb_v(2, 0); }), HasSubstr("num_microbatches = 0"));
  EXPECT_THAT(input_error([] { interleaved_1f1b(4, 6, 2); }), HasSubstr("size = 4, not 6; nearest: 4 or 8"));
  EXPECT_EQ(make_schedule(ScheduleKind::Interleaved, 4, 8, 2).per_rank, interleaved_1f1b(4, 8, 2).per_rank);
}

TEST(ScheduleTest, ReportsAllConflictsInConfigurationTerms) {
  using enum ScheduleKind;
  EXPECT_THAT(
      schedule_conflicts(Interleaved, 1, 1, 3),
      ElementsAre("pipeline_schedule = interleaved needs pipeline_model_parallel_size of at least 2, not 1; for "
                  "1, use 1f1b",
                  "pipeline_schedule = interleaved needs num_virtual_stages_per_pipeline_rank of at least 2, not "
                  "1; for 1, use 1f1b"));
  EXPECT_THAT(schedule_conflicts(Interleaved, 4, 1, 3),
              ElementsAre(HasSubstr("not 1; for 1, use 1f1b"), HasSubstr("size = 4, not 3; nearest: 4")));
  EXPECT_THAT(schedule_conflicts(ZbV, 4, 3, 1),
              ElementsAre("pipeline_schedule = zb-v needs num_virtual_stages_per_pipeline_rank = 2, not 3; for 3, "
                          "use interleaved"));
  EXPECT_THAT(schedule_conflicts(ZbV, 4, 1, 1), ElementsAre(HasSubstr("= 2, not 1; for 1, use 1f1b")));
  for (const ScheduleKind kind : {GPipe, OneFOneB, ZbH1})
    EXPECT_THAT(schedule_conflicts(kind, 4, 2, 1), ElementsAre(HasSubstr("= 1, not 2; for 2, use interleaved")));
}

// A schedule is rejected if and only if it cannot be built.
TEST(ScheduleTest, RejectsSchedulesThatWouldExhaustMemory) {
  EXPECT_THAT(schedule_conflicts(ScheduleKind::OneFOneB, 8, 1, 1 << 20), testing::IsEmpty());
  EXPECT_THAT(
      schedule_conflicts(ScheduleKind::OneFOneB, 4096, 1, 1'000'000),
      ElementsAre("4096 pipeline stages x 1000000 microbatches are more than 8388608; raise micro_batch_size, or "
                  "use fewer stages"));
  EXPECT_THAT(schedule_conflicts(ScheduleKind::Interleaved, 1 << 30, 1 << 30, 1 << 30), testing::SizeIs(1));
}

TEST(ScheduleTest, ConflictsMatchErrorsOfMakeSchedule) {
  for (int kind = 0; kind < 5; ++kind)
    for (int p = 0; p <= 4; ++p)
      for (int chunks = 0; chunks <= 3; ++chunks)
        for (int m = 0; m <= 5; ++m) {
          const auto k = static_cast<ScheduleKind>(kind);
          const std::string error = test::input_error([&] { run(make_schedule(k, p, m, chunks)); });
          EXPECT_EQ(error, join(schedule_conflicts(k, p, chunks, m), "\n"));
        }
}

TEST(ScheduleTest, ForwardOnlySchedulesRunForwardsOfAllChunks) {
  for (const Schedule& schedule :
       {gpipe(3, 4), one_f_one_b(1, 1), one_f_one_b(4, 9), interleaved_1f1b(4, 8, 3), zb_h1(4, 8), zb_v(3, 7)}) {
    const Schedule forwards = forward_schedule(schedule);
    const Timeline timeline = run(forwards);
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      EXPECT_DOUBLE_EQ(timeline.busy[rank], schedule.microbatches * schedule.chunks_per_rank);
      EXPECT_EQ(timeline.peak_in_flight[rank], 1);
    }
    Schedule bad = lower(forwards);
    bad.per_rank[0].push_back({ActionKind::Backward, 0, 0});
    EXPECT_THAT(rejection(bad), HasSubstr("the schedule has forwards only"));
    bad = lower(forwards);
    bad.per_rank[0].pop_back();
    EXPECT_NE(rejection(bad), "");
  }
  EXPECT_DOUBLE_EQ(run(forward_schedule(one_f_one_b(4, 9))).makespan, 4 + 9 - 1);
}

std::vector<Schedule> lowered_schedules() {
  return {lower(gpipe(3, 4)), lower(one_f_one_b(4, 8)), lower(interleaved_1f1b(4, 8, 2)), lower(zb_h1(4, 8)),
          lower(zb_v(3, 7))};
}

TEST(SimulateTest, DetectsEveryMissingAction) {
  for (const Schedule& good : lowered_schedules())
    for (int rank = 0; rank < good.ranks; ++rank)
      for (std::size_t k = 0; k < good.per_rank[rank].size(); ++k) {
        Schedule bad = good;
        bad.per_rank[rank].erase(bad.per_rank[rank].begin() + static_cast<std::ptrdiff_t>(k));
        EXPECT_NE(rejection(bad), "") << "without the " << describe(good.per_rank[rank][k]);
      }
}

TEST(SimulateTest, DetectsEveryRepeatedAction) {
  for (const Schedule& good : lowered_schedules())
    for (int rank = 0; rank < good.ranks; ++rank)
      for (std::size_t k = 0; k < good.per_rank[rank].size(); ++k) {
        Schedule bad = good;
        bad.per_rank[rank].push_back(good.per_rank[rank][k]);
        EXPECT_NE(rejection(bad), "") << "with another " << describe(good.per_rank[rank][k]);
      }
}

TEST(SimulateTest, DetectsActionsOfWrongMicrobatchOrStage) {
  for (const Schedule& good : lowered_schedules())
    for (int rank = 0; rank < good.ranks; ++rank)
      for (std::size_t k = 0; k < good.per_rank[rank].size(); ++k)
        for (const int delta : {-1, 1}) {
          Schedule bad = good;
          bad.per_rank[rank][k].microbatch += delta;
          EXPECT_NE(rejection(bad) != "", good.per_rank[rank][k].kind == ActionKind::ReduceGrad);
          bad = good;
          bad.per_rank[rank][k].stage += delta * good.ranks;
          EXPECT_NE(rejection(bad), "");
        }
}

TEST(SimulateTest, NamesRankStepAndActionOfError) {
  const Schedule good = lower(one_f_one_b(2, 2));
  // Rank 0: F0 sF0 F1 sF1 rB0 B0 rB1 B1 R. Rank 1: rF0 F0 B0 sB0 rF1 F1 B1 sB1 R.
  const auto swapped = [&](int rank, int a, int b) {
    Schedule bad = good;
    std::swap(bad.per_rank[rank][a], bad.per_rank[rank][b]);
    return rejection(bad);
  };
  EXPECT_THAT(swapped(0, 0, 1),
              HasSubstr("rank 0, step 0 (send of output of microbatch 0 in stage 0): it is sent before"));
  Schedule overtaken = good;
  auto& first = overtaken.per_rank[0];
  std::rotate(first.begin() + 1, first.begin() + 2, first.begin() + 4);  // F0 F1 sF1 sF0
  EXPECT_THAT(rejection(overtaken), HasSubstr("the next message is the send of output of microbatch 1"));
  EXPECT_THAT(swapped(0, 1, 4), HasSubstr("deadlock"));
  EXPECT_THAT(swapped(0, 4, 5), HasSubstr("the gradient of its output is missing"));
  EXPECT_THAT(swapped(1, 0, 1), HasSubstr("its input is missing"));
  EXPECT_THAT(swapped(1, 1, 2), HasSubstr("its forward has not been computed"));
  EXPECT_EQ(swapped(1, 7, 8), "");  // a reduction before the last message is allowed
  EXPECT_THAT(swapped(1, 6, 8), HasSubstr("weight gradients are still missing"));

  Schedule twice = good;
  twice.per_rank[1].insert(twice.per_rank[1].begin() + 3, {ActionKind::BackwardWeight, 1, 0});
  EXPECT_THAT(rejection(twice), HasSubstr("its input gradient has not been computed"));
  Schedule split = lower(zb_h1(2, 2));
  const auto weight =
      std::find(split.per_rank[0].begin(), split.per_rank[0].end(), Action{ActionKind::BackwardWeight, 0, 0});
  split.per_rank[0].insert(weight + 1, {ActionKind::Backward, 0, 0});
  EXPECT_THAT(rejection(split), HasSubstr("its gradient is computed twice"));

  const auto without_microbatch = [](Schedule bad, int microbatch) {
    for (auto& actions : bad.per_rank)
      std::erase_if(actions, [&](const Action& action) { return action.microbatch == microbatch; });
    return rejection(bad);
  };
  EXPECT_THAT(without_microbatch(good, 1), HasSubstr("weight gradients are still missing"));
  EXPECT_THAT(without_microbatch(lower(forward_schedule(one_f_one_b(2, 2))), 1),
              HasSubstr("microbatch 1 is lost in stage 0"));
  Schedule reversed = lower(gpipe(1, 3));
  std::swap(reversed.per_rank[0][3], reversed.per_rank[0][5]);
  EXPECT_THAT(rejection(reversed), HasSubstr("weight gradients are not added in microbatch order"));
}

TEST(SimulateTest, CountsTimeOfMessagesAndReductions) {
  // Two ranks, one microbatch: F, message, F, B, message, B, reduction.
  const Timeline timeline = run(
      one_f_one_b(2, 1), {.forward = 2, .backward_input = 3, .backward_weight = 1, .message = 0.5, .reduce_grad = 10});
  EXPECT_DOUBLE_EQ(timeline.makespan, 2 + 0.5 + 2 + 4 + 0.5 + 4 + 10);
  EXPECT_DOUBLE_EQ(timeline.busy[0], 16);
  EXPECT_DOUBLE_EQ(timeline.idle[0], 7);
}

TEST(SimulateTest, AppliesMessageTimeToBothDirections) {
  const ScheduleCosts slow{.message = 7}, fast{.message = 0.5};
  const std::vector<ScheduleCosts> costs{fast, slow, {.message = 100}};
  const Schedule schedule = lower(one_f_one_b(3, 1));
  EXPECT_DOUBLE_EQ(simulate(schedule, costs).makespan, 3 * 3 + 2 * (7 + 0.5));
  EXPECT_DOUBLE_EQ(oversubscribed_makespan(schedule, costs, 3), 3 * 3 + 2 * (7 + 0.5));
}

TEST(DrawTest, TextHasOneLinePerRank) {
  const Schedule schedule = one_f_one_b(2, 2);
  EXPECT_EQ(draw_text(schedule, run(schedule)),
            "rank 0  |01..aa.bb|\n"
            "rank 1  |.0aa1bb..|\n"
            "forward 0-9, backward or input gradient a-j, weight gradient A-J, idle .\n"
            "2 ranks, 1 chunk per rank, 2 microbatches: time 9, bubble 33.3 %, at most 2 microbatches in memory\n");
}

TEST(DrawTest, ScalesWideSchedules) {
  const Schedule schedule = zb_h1(4, 100);
  const std::string text = draw_text(schedule, run(schedule), 60);
  EXPECT_EQ(text.find('\n'), 8 + 60 + 2);
}

TEST(DrawTest, SvgHasOneBoxPerAction) {
  const Schedule schedule = zb_v(2, 4);
  const std::string svg = draw_svg(schedule, run(schedule));
  std::size_t boxes = 0;
  for (std::size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) ++boxes;
  EXPECT_EQ(boxes, 2 * 2 * 4 * 3);
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("<title>input gradient of microbatch 3 in stage 2, "));
}

}  // namespace
}  // namespace mcpp
