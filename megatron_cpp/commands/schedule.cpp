// Command megatron_cpp schedule: draws a pipeline schedule and prints its bubble, memory and exposed communication.
#include "parallel/pp/schedule.h"

#include <algorithm>
#include <optional>

#include "base/file.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/arguments.h"
#include "parallel/pp/draw.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {
namespace {

constexpr std::size_t kKinds = kSchedules.size();

/// ScheduleKind, or all of them.
enum class Choice : u8 { All = kKinds };

}  // namespace

template <>
struct EnumNames<Choice> {
  static constexpr auto value = [] {
    std::array<std::string_view, kKinds + 1> names;
    std::copy_n(EnumNames<ScheduleKind>::value.begin(), kKinds, names.begin());
    names[kKinds] = "all";
    return names;
  }();
};

namespace {

/// Range of a time: sums over all passes of a step must not overflow a double.
constexpr Constraint kTimeRange{.min = 0, .max = 1e100};

struct ScheduleOptions {
  Choice schedule = static_cast<Choice>(ScheduleKind::OneFOneB);
  i64 pipeline_model_parallel_size = 4;
  i64 num_microbatches = 8;
  i64 num_virtual_stages_per_pipeline_rank = 0;
  ScheduleCosts costs;
  std::string svg;
  i64 width = 100;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("schedule", self.schedule, "schedule to draw; all = a table that compares all schedules");
    visit("pipeline_model_parallel_size", self.pipeline_model_parallel_size, "ranks of the pipeline", between(1, 256));
    visit("num_microbatches", self.num_microbatches, "microbatches of one step", between(1, 8192));
    visit("num_virtual_stages_per_pipeline_rank", self.num_virtual_stages_per_pipeline_rank,
          "model chunks per rank; 0 = the minimum of the schedule", between(0, 64));
    visit("forward", self.costs.forward, "time of one microbatch's forward pass through all chunks of a rank",
          kTimeRange);
    visit("backward_input", self.costs.backward_input, "time of the gradient of the activations", kTimeRange);
    visit("backward_weight", self.costs.backward_weight, "time of the gradient of the weights", kTimeRange);
    visit("message", self.costs.message, "time to send activations to the next rank", kTimeRange);
    visit("reduce_grad", self.costs.reduce_grad, "time of a rank's gradient reduction at the end", kTimeRange);
    visit("svg", self.svg, "SVG file to write the drawing to");
    visit("width", self.width, "maximum number of columns of the drawing in text", between(10, 10000));
  }

  int ranks() const { return static_cast<int>(pipeline_model_parallel_size); }
  int microbatches() const { return static_cast<int>(num_microbatches); }
  /// Returns the chunks per rank. If `is_comparison`, schedules that do not support the requested number use one that
  /// they support.
  int chunks(ScheduleKind kind, bool is_comparison) const {
    const auto requested = static_cast<int>(num_virtual_stages_per_pipeline_rank);
    const ScheduleRow& row = row_of(kind);
    return requested == 0 || (is_comparison && !row.allows_more_chunks) ? row.min_chunks : requested;
  }
};

/// Schedule and its simulated execution.
struct Study {
  Study(ScheduleKind schedule_kind, int chunks, const ScheduleOptions& options)
      : kind(schedule_kind), schedule(make_schedule(kind, options.ranks(), options.microbatches(), chunks)) {
    // A stage is one of the chunks of a rank.
    ScheduleCosts costs = options.costs;
    for (double* time : {&costs.forward, &costs.backward_input, &costs.backward_weight, &costs.reduce_grad})
      *time /= chunks;
    const Schedule lowered = lower(schedule);
    timeline = simulate(lowered, costs);
    published = row_of(kind).published_bubble(
        {.ranks = schedule.ranks, .microbatches = schedule.microbatches, .chunks = chunks}, costs);
    costs.message = costs.reduce_grad = 0;
    exposed = timeline.makespan - simulate(lowered, costs).makespan;
  }

  /// Converts a number of stored stage inputs to microbatches.
  double microbatches(int in_flight) const { return static_cast<double>(in_flight) / schedule.chunks_per_rank; }
  std::string published_text() const { return published ? percent(*published) : "-"; }
  static std::string percent(double fraction) { return fixed(100 * fraction, 1) + " %"; }

  ScheduleKind kind;
  Schedule schedule;
  Timeline timeline;
  std::optional<double> published;
  double exposed = 0;  ///< time added by communication
};

/// Checks everything that could fail later.
void check_options(const ScheduleOptions& options, const std::vector<ScheduleKind>& kinds) {
  std::vector<std::string> problems;
  const bool is_comparison = kinds.size() > 1;
  if (is_comparison && !options.svg.empty()) problems.push_back("svg: needs one schedule, not all");
  for (const ScheduleKind kind : kinds) {
    const int chunks = options.chunks(kind, is_comparison);
    constexpr i64 kMaxUnits = 1 << 20;
    if (i64{chunks} * options.ranks() * options.microbatches() > kMaxUnits)
      problems.push_back(str(enum_name(kind), ": ", chunks, " x ", options.ranks(), " stages x ",
                             options.microbatches(), " microbatches are more than can be simulated (", kMaxUnits, ")"));
    if (is_comparison) continue;  // shown in the table
    for (std::string& text : schedule_conflicts(kind, options.ranks(), chunks, options.microbatches()))
      problems.push_back(std::move(text));
  }
  check_input(problems.empty(), join(problems, "\n"));
}

std::string table(const ScheduleOptions& options, const std::vector<ScheduleKind>& kinds) {
  std::string text =
      str(options.ranks(), " ranks, ", options.microbatches(), " microbatches\n", pad_right("schedule", 12),
          pad_left("chunks", 8), pad_left("bubble", 10), pad_left("published", 11), pad_left("time", 10),
          pad_left("activations", 13), pad_left("exposed", 10), "\n");
  for (const ScheduleKind kind : kinds) {
    const int chunks = options.chunks(kind, /*compares=*/true);
    text += pad_right(enum_name(kind), 12) + pad_left(str(chunks), 8);
    const auto conflicts = schedule_conflicts(kind, options.ranks(), chunks, options.microbatches());
    if (!conflicts.empty()) {
      text += "  impossible: " + join(conflicts, "; ") + "\n";
      continue;
    }
    const Study study(kind, chunks, options);
    text += str(pad_left(Study::percent(study.timeline.bubble), 10), pad_left(study.published_text(), 11),
                pad_left(str(study.timeline.makespan), 10),
                pad_left(str(study.microbatches(study.timeline.max_in_flight())), 13), pad_left(str(study.exposed), 10),
                "\n");
  }
  return text +
         "bubble: largest fraction of its time that a rank waits, and the papers' formula for it; activations: the "
         "maximum\nnumber of microbatches that a rank stores; exposed: time added by communication";
}

std::string figures(const Study& study) {
  const Timeline& timeline = study.timeline;
  std::string text = str(pad_right("rank", 8), pad_left("works", 10), pad_left("waits", 10),
                         pad_left("microbatches stored, at most", 30), "\n");
  for (std::size_t rank = 0; rank < timeline.busy.size(); ++rank)
    text += str(pad_right(str(rank), 8), pad_left(str(timeline.busy[rank]), 10), pad_left(str(timeline.idle[rank]), 10),
                pad_left(str(study.microbatches(timeline.peak_in_flight[rank])), 30), "\n");
  return str(text, "bubble                 ", Study::percent(timeline.bubble),
             "; published formula, without messages: ", study.published_text(), "\nexposed communication  ",
             study.exposed);
}

}  // namespace

ExitCode schedule_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp schedule",
                    .summary =
                        "Draws a pipeline schedule and prints its bubble, stored activations and exposed "
                        "communication\nfor given times of each kind of work, in any unit.",
                    .positional = {"schedule"},
                    .required = {}};
  ScheduleOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  std::vector<ScheduleKind> kinds;
  for (std::size_t i = 0; i < kKinds; ++i)
    if (options.schedule == Choice::All || options.schedule == static_cast<Choice>(i))
      kinds.push_back(static_cast<ScheduleKind>(i));
  check_options(options, kinds);
  if (options.schedule == Choice::All) {
    log.info(table(options, kinds));
    return ExitCode::Done;
  }
  const Study study(kinds[0], options.chunks(kinds[0], /*compares=*/false), options);
  log.info(str(draw_text(study.schedule, study.timeline, static_cast<int>(options.width)), figures(study)));
  if (!options.svg.empty()) write_file_atomic(options.svg, draw_svg(study.schedule, study.timeline));
  return ExitCode::Done;
}

}  // namespace mcpp
