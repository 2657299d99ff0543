// Table of schedule kinds with one row of properties per kind.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "parallel/pp/simulate.h"

namespace mcpp {

enum class ScheduleKind : u8 { GPipe, OneFOneB, Interleaved, ZbH1, ZbV, DualPipeV };

/// Dimensions of a schedule.
struct PipelineSize {
  int ranks = 1, microbatches = 1, chunks = 1;
};

struct ScheduleRow {
  ScheduleKind kind;
  std::string_view name;  ///< name in the configuration and on the command line
  StagePlacement placement;
  bool splits_backward;  ///< weight gradients are computed separately, after input gradients
  int min_ranks;
  int min_chunks;                ///< model chunks per rank
  bool allows_more_chunks;       ///< more than min_chunks are allowed
  bool needs_multiple_of_ranks;  ///< microbatches must be a multiple of the ranks
  Schedule (*build)(const PipelineSize&);
  /// Returns the fraction of idle time according to the paper, which ignores communication. `costs` are the costs of
  /// one stage. Returns std::nullopt if the paper has no formula for these costs or there are too few microbatches.
  std::optional<double> (*published_bubble)(const PipelineSize&, const ScheduleCosts& costs);
  std::string_view formula;  ///< formula of the fraction for equal costs, with p ranks, m microbatches, v chunks
};

/// Return the bubble according to the formulas of 1F1B (also valid for GPipe; chunks shorten it), ZB-H1, ZB-V and
/// DualPipeV. The published formula of DualPipeV is for pairs that overlap; this one is for equal costs and no overlap.
std::optional<double> bubble_of_1f1b(const PipelineSize& size, const ScheduleCosts& costs);
std::optional<double> bubble_of_zb_h1(const PipelineSize& size, const ScheduleCosts& costs);
std::optional<double> bubble_of_zb_v(const PipelineSize& size, const ScheduleCosts& costs);
std::optional<double> bubble_of_dualpipe_v(const PipelineSize& size, const ScheduleCosts& costs);

/// All kinds, in enum order.
inline constexpr std::array<ScheduleRow, 6> kSchedules{{
    {.kind = ScheduleKind::GPipe,
     .name = "gpipe",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .min_ranks = 1,
     .min_chunks = 1,
     .allows_more_chunks = false,
     .needs_multiple_of_ranks = false,
     .build = [](const PipelineSize& size) { return gpipe(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (m+p-1)"},
    {.kind = ScheduleKind::OneFOneB,
     .name = "1f1b",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .min_ranks = 1,
     .min_chunks = 1,
     .allows_more_chunks = false,
     .needs_multiple_of_ranks = false,
     .build = [](const PipelineSize& size) { return one_f_one_b(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (m+p-1)"},
    {.kind = ScheduleKind::Interleaved,
     .name = "interleaved",
     .placement = StagePlacement::Loop,
     .splits_backward = false,
     .min_ranks = 2,
     .min_chunks = 2,
     .allows_more_chunks = true,
     .needs_multiple_of_ranks = true,
     .build = [](const PipelineSize& size) { return interleaved_1f1b(size.ranks, size.microbatches, size.chunks); },
     .published_bubble = bubble_of_1f1b,
     .formula = "(p-1) / (v m+p-1)"},
    {.kind = ScheduleKind::ZbH1,
     .name = "zb-h1",
     .placement = StagePlacement::Loop,
     .splits_backward = true,
     .min_ranks = 1,
     .min_chunks = 1,
     .allows_more_chunks = false,
     .needs_multiple_of_ranks = false,
     .build = [](const PipelineSize& size) { return zb_h1(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_zb_h1,
     .formula = "(p-1) / (3m+p-1), m >= p"},
    {.kind = ScheduleKind::ZbV,
     .name = "zb-v",
     .placement = StagePlacement::V,
     .splits_backward = true,
     .min_ranks = 1,
     .min_chunks = 2,
     .allows_more_chunks = false,
     .needs_multiple_of_ranks = false,
     .build = [](const PipelineSize& size) { return zb_v(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_zb_v,
     .formula = "0, m >= 2p"},
    {.kind = ScheduleKind::DualPipeV,
     .name = "dualpipe-v",
     .placement = StagePlacement::V,
     .splits_backward = true,
     .min_ranks = 1,
     .min_chunks = 2,
     .allows_more_chunks = false,
     .needs_multiple_of_ranks = false,
     .build = [](const PipelineSize& size) { return dualpipe_v(size.ranks, size.microbatches); },
     .published_bubble = bubble_of_dualpipe_v,
     .formula = "(p-1) / (6m+p-1), m >= 2p"},
}};

constexpr const ScheduleRow& row_of(ScheduleKind kind) {
  return kSchedules[static_cast<std::size_t>(kind)];
}

/// Returns true if combine_passes() finds pairs in schedules of this kind. GPipe has no adjacent forward and backward
/// passes; in ZB-H1, the gradient that a rank waits for depends on its last forward pass.
constexpr bool can_combine_passes(ScheduleKind kind) {
  return kind != ScheduleKind::GPipe && kind != ScheduleKind::ZbH1;
}

template <>
struct EnumNames<ScheduleKind> {
  static constexpr auto value = [] {
    std::array<std::string_view, kSchedules.size()> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = kSchedules[i].name;
    return names;
  }();
};

/// Builds a schedule. `chunks` must be valid for the kind. Throws BadInput with all of schedule_conflicts().
Schedule make_schedule(ScheduleKind kind, int ranks, int microbatches, int chunks);

/// Returns every reason why make_schedule() rejects these arguments, in terms of configuration keys (pipeline_schedule,
/// pipeline_model_parallel_size, num_virtual_stages_per_pipeline_rank), with the nearest valid values. Empty if the
/// schedule exists.
std::vector<std::string> schedule_conflicts(ScheduleKind kind, int ranks, int chunks, int microbatches);

/// Returns "at least 2 for interleaved, 2 for zb-v": the kinds that need several chunks per rank.
std::string describe_min_chunks();
/// Returns "gpipe, 1f1b or interleaved": the kinds that do not split the backward pass.
std::string kinds_with_fused_backward();
/// Returns the kinds for which can_combine_passes() returns true, as text like the above.
std::string kinds_with_combined_passes();

}  // namespace mcpp
