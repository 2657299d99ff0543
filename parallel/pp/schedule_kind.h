// The kinds of schedules: a table with a row for each, which has all that anybody asks of a kind.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "parallel/pp/simulate.h"

namespace mcpp {

enum class ScheduleKind : u8 { GPipe, OneFOneB, Interleaved, ZbH1, ZbV };

/// What a schedule is built for.
struct PipelineSize {
  int ranks = 1, microbatches = 1, chunks = 1;
};

struct ScheduleRow {
  ScheduleKind kind;
  std::string_view name;  ///< in the configuration and on the command line
  StagePlacement placement;
  bool splits_backward;  ///< weight gradients come later than those of the activations
  int fewest_ranks;
  int fewest_chunks;       ///< model chunks per rank
  bool takes_more_chunks;  ///< otherwise it has just the fewest
  bool in_rounds;          ///< the microbatches must be a multiple of the ranks
  Schedule (*build)(const PipelineSize&);
  /// The fraction of time that a rank waits according to the papers, which leave communication out; nothing where they
  /// have no formula for such costs or so few microbatches. `costs` are those of a stage.
  std::optional<double> (*published_bubble)(const PipelineSize&, const ScheduleCosts& costs);
  std::string_view formula;  ///< the same for equal costs, with p ranks, m microbatches, v chunks
};

/// Of 1F1B, whose bubble GPipe shares and chunks shorten; of ZB-H1; of ZB-V.
std::optional<double> bubble_of_1f1b(const PipelineSize& size, const ScheduleCosts& costs);
std::optional<double> bubble_of_zb_h1(const PipelineSize& size, const ScheduleCosts& costs);
std::optional<double> bubble_of_zb_v(const PipelineSize& size, const ScheduleCosts& costs);

/// In the order of the kinds.
inline constexpr std::array<ScheduleRow, 5> kSchedules{{
    {.kind = ScheduleKind::GPipe,
     .name = "gpipe",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .fewest_ranks = 1,
     .fewest_chunks = 1,
     .takes_more_chunks = false,
     .in_rounds = false,
     .build = [](const PipelineSize& size) { return gpipe(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (m+p-1)"},
    {.kind = ScheduleKind::OneFOneB,
     .name = "1f1b",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .fewest_ranks = 1,
     .fewest_chunks = 1,
     .takes_more_chunks = false,
     .in_rounds = false,
     .build = [](const PipelineSize& size) { return one_f_one_b(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (m+p-1)"},
    {.kind = ScheduleKind::Interleaved,
     .name = "interleaved",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .fewest_ranks = 2,
     .fewest_chunks = 2,
     .takes_more_chunks = true,
     .in_rounds = true,
     .build = [](const PipelineSize& size) { return interleaved_1f1b(size.ranks, size.microbatches, size.chunks); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (v m+p-1)"},
    {.kind = ScheduleKind::ZbH1,
     .name = "zb-h1",
     .placement = StagePlacement::Loop,
     .splits_backward = true,
     .fewest_ranks = 1,
     .fewest_chunks = 1,
     .takes_more_chunks = false,
     .in_rounds = false,
     .build = [](const PipelineSize& size) { return zb_h1(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_zb_h1,
     .formula = "(p-1) / (3m+p-1), m >= p"},
    {.kind = ScheduleKind::ZbV,
     .name = "zb-v",
     .placement = StagePlacement::V,
     .splits_backward = true,
     .fewest_ranks = 1,
     .fewest_chunks = 2,
     .takes_more_chunks = false,
     .in_rounds = false,
     .build = [](const PipelineSize& size) { return zb_v(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_zb_v,
     .formula = "0, m >= 2p"},
}};

constexpr const ScheduleRow& row_of(ScheduleKind kind) {
  return kSchedules[static_cast<std::size_t>(kind)];
}

template <>
struct EnumNames<ScheduleKind> {
  static constexpr auto value = [] {
    std::array<std::string_view, kSchedules.size()> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = kSchedules[i].name;
    return names;
  }();
};

/// `chunks` must be what the kind has. Throws BadInput with all of schedule_conflicts().
Schedule make_schedule(ScheduleKind kind, int ranks, int microbatches, int chunks);

/// Every reason why make_schedule() refuses these, in the names of the configuration (pipeline_schedule,
/// pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank), each with the nearest values that would do.
/// Empty when there is such a schedule.
std::vector<std::string> schedule_conflicts(ScheduleKind kind, int ranks, int chunks, int microbatches);

/// "at least 2 for interleaved, 2 for zb-v": the kinds that need several chunks per rank.
std::string chunks_needed();
/// "gpipe, 1f1b or interleaved": those with the whole backward pass at once.
std::string kinds_with_whole_backward();

}  // namespace mcpp
