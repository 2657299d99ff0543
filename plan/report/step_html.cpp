#include "plan/report/step_html.h"

#include <algorithm>

#include "base/html.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "plan/layout_memory.h"
#include "plan/report/report.h"
#include "plan/utilization.h"

namespace mcpp {
namespace {

constexpr const char* kStyle = R"(
:root { --page: #f6f7f9; --card: #fff; --ink: #1b1f24; --quiet: #5d6673; --line: #dfe3e8; --wait: #e3e6ea; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --card: #1c2026; --ink: #e5e9ee; --quiet: #98a2b0; --line: #323943; --wait: #2a3038; }
}
body { margin: 0; padding: 0 20px 40px; background: var(--page); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 18px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 24px 0 8px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; overflow-x: auto; }
.quiet { color: var(--quiet); } ul { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 6px 0; padding: 0; list-style: none; }
li i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
svg { display: block; } text { font-size: 11px; fill: var(--ink); } .wait { fill: var(--wait); }
.level { fill: #3f9c74; fill-opacity: 0.35; stroke: #14805e; } .limit { stroke: #c8551b; stroke-dasharray: 4 3; }
)";
constexpr double kLeft = 64, kBarWidth = 900, kRow = 30, kMemoryRow = 56, kMaxWidth = 20000;

std::string time_text(double seconds) {
  return seconds < 10 ? fixed(1e3 * seconds, 3) + " ms" : fixed(seconds, 3) + " s";
}

/// Returns a rectangle with a tooltip.
std::string box(double x, double y, double width, double height, const std::string& look, const std::string& title) {
  return str("<rect x=\"", fixed(x, 2), "\" y=\"", fixed(y, 2), "\" width=\"", fixed(width, 3), "\" height=\"",
             fixed(height, 1), "\" ", look, "><title>", escape_html(title), "</title></rect>\n");
}

std::string svg(double width, double height, const std::string& name, const std::string& content) {
  return str("<div class=\"card\"><svg data-chart=\"", name, "\" width=\"", fixed(width, 0), "\" height=\"",
             fixed(height, 0), "\">\n", content, "</svg></div>\n");
}

std::string row_name(std::size_t rank, double y) {
  return str("<text x=\"0\" y=\"", fixed(y, 1), "\">rank ", rank, "</text>\n");
}

/// Returns the parts as adjacent boxes starting at x, `scale` pixels per second.
std::string strip(const std::vector<StepPart>& parts, double x, double y, double height, double scale,
                  const std::string& of) {
  std::string text;
  for (const StepPart& part : parts) {
    if (part.seconds <= 0) continue;
    text += box(x, y, part.seconds * scale, height, str("fill=\"", part.color, "\" data-part=\"", part.key, "\""),
                str(of, part.name, ", ", time_text(part.seconds)));
    x += part.seconds * scale;
  }
  return text;
}

std::string shares(const std::vector<StepTime>& ranks) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = static_cast<double>(rank) * kRow;
    text += row_name(rank, y + 18) +
            strip(step_parts(ranks[rank]), kLeft, y + 4, kRow - 8, kBarWidth / ranks[rank].seconds, "");
  }
  return svg(kLeft + kBarWidth + 8, kRow * static_cast<double>(ranks.size()) + 4, "shares", text);
}

std::string legend(const std::vector<StepTime>& ranks) {
  std::string text = "<ul>\n";
  const std::vector<StepPart> all = step_parts(ranks.front());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto takes_time = [&](const StepTime& rank) { return step_parts(rank)[i].seconds > 0; };
    if (std::ranges::any_of(ranks, takes_time))
      text += str("<li><i style=\"background:", all[i].color, "\"></i>", all[i].name, "</li>\n");
  }
  return text + "</ul>\n";
}

bool is_pass(const TimedAction& timed) {
  return timed.action.kind <= ActionKind::BackwardWeight && timed.end > timed.begin;
}

/// Returns the breakdown of a pass.
PassTime pass_breakdown(const StepTimeline& step, const Action& action) {
  const UnitTime& stage = step.stages[static_cast<std::size_t>(action.stage)];
  if (action.kind == ActionKind::Forward) return stage.forward;
  PassTime sum;
  if (computes_input_grad(action.kind)) sum += stage.backward_input;
  if (computes_weight_grad(action.kind)) sum += stage.backward_weight;
  return sum;
}

/// Returns pixels per second: the shortest pass is wide enough to be visible, and the picture's width is bounded.
double choose_scale(const StepTimeline& step) {
  double shortest = step.timeline.makespan;
  for (const auto& actions : step.timeline.per_rank)
    for (const TimedAction& timed : actions)
      if (is_pass(timed)) shortest = std::min(shortest, timed.end - timed.begin);
  return std::min(24 / shortest, kMaxWidth / step.timeline.makespan);
}

std::string passes(const StepTimeline& step, double scale) {
  std::string text;
  const auto& ranks = step.timeline.per_rank;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = static_cast<double>(rank) * kRow;
    text +=
        row_name(rank, y + 18) + box(kLeft, y + 3, step.timeline.makespan * scale, kRow - 6, "class=\"wait\"", "waits");
    for (const TimedAction& timed : ranks[rank]) {
      if (!is_pass(timed)) continue;
      const PassTime all = pass_breakdown(step, timed.action);
      // Timeline durations include waiting for shared cores.
      const double stretch = (timed.end - timed.begin) / all.total();
      text += strip(pass_parts(all * stretch), kLeft + timed.begin * scale, y + 3, kRow - 6, scale,
                    describe(timed.action) + ": ");
    }
  }
  return svg(kLeft + step.timeline.makespan * scale + 8, kRow * static_cast<double>(ranks.size()), "passes", text);
}

struct MemoryPoint {
  double seconds = 0, bytes = 0;
};

/// Returns the activation memory of a rank at the beginning and end of each pass.
std::vector<MemoryPoint> activations(const PredictionInput& input, const StepTimeline& step, std::size_t rank) {
  const ActivationSetup setup = input.activations();
  const std::vector<StageContents> stages = split_stages(input.layout, input.work.model.num_layers);
  std::vector<MemoryPoint> points{{0, 0}};
  i64 saved = 0;
  for (const TimedAction& timed : step.timeline.per_rank[rank]) {
    if (!is_pass(timed)) continue;
    const StageActivations stage =
        stage_activations(input.work.model, setup, stages[static_cast<std::size_t>(timed.action.stage)]);
    const ActionKind kind = timed.action.kind;
    const bool delays_wgrad = kind == ActionKind::BackwardInput;
    const i64 working_bytes = !computes_input_grad(kind) ? 0
                              : delays_wgrad             ? stage.working_delayed_wgrad
                                                         : stage.working;
    points.push_back({timed.begin, static_cast<double>(saved + working_bytes)});
    if (kind == ActionKind::Forward) saved += stage.saved;
    points.push_back({timed.end, static_cast<double>(saved + working_bytes)});
    if (computes_input_grad(kind)) saved += (delays_wgrad ? stage.waiting : 0) - stage.saved;
    if (kind == ActionKind::BackwardWeight) saved -= stage.waiting;
    points.push_back({timed.end, static_cast<double>(saved)});
  }
  points.push_back({step.timeline.makespan, static_cast<double>(saved)});
  return points;
}

std::string memory(const PredictionInput& input, const StepTimeline& step, double scale) {
  LayoutMemory memory_model(input.work);
  const double limit = input.hardware.memory_bytes();
  const std::size_t ranks = step.timeline.per_rank.size();
  std::vector<MemoryEstimate> estimates;
  double peak = limit;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    estimates.push_back(memory_model.estimate_rank(input.layout, static_cast<int>(rank)));
    peak = std::max(peak, estimates.back().total());
  }
  std::string text;
  const double end = kLeft + step.timeline.makespan * scale;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double floor = static_cast<double>(rank + 1) * kMemoryRow - 4, height = kMemoryRow - 10;
    const auto y = [&](double bytes) { return fixed(floor - bytes / peak * height, 2); };
    const double persistent_bytes = estimates[rank].total() - estimates[rank].activations;
    std::string line = str(fixed(kLeft, 2), ",", fixed(floor, 2));
    for (const MemoryPoint& point : activations(input, step, rank))
      line += str(" ", fixed(kLeft + point.seconds * scale, 2), ",", y(persistent_bytes + point.bytes));
    text += row_name(rank, floor - height / 2) +
            str("<polygon class=\"level\" points=\"", line, " ", fixed(end, 2), ",", fixed(floor, 2), "\"><title>",
                human_bytes(persistent_bytes), " persistent, at most ", human_bytes(estimates[rank].total()),
                "</title></polygon>\n", "<line class=\"limit\" x1=\"", fixed(kLeft, 0), "\" x2=\"", fixed(end, 2),
                "\" y1=\"", y(limit), "\" y2=\"", y(limit), "\"/>\n");
  }
  return svg(end + 8, kMemoryRow * static_cast<double>(ranks), "memory", text);
}

}  // namespace

std::string step_html(const PredictionInput& input, const StepTime& time) {
  const std::vector<StepTime> ranks = step_time_by_rank(input);
  const StepTimeline step = step_timeline(input, 4 * input.layout.pp);
  const double scale = choose_scale(step);
  const std::string title =
      escape_html(str(input.layout.world_size(), " x ", input.hardware.device.name, ": ", input.layout.describe()));
  return str(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", title, "</title><style>", kStyle,
      "</style></head><body>\n<h1>", title, "</h1>\n<p>A step is predicted to take ", time_text(time.seconds), ": ",
      human_count(input.work.tokens() / time.seconds), " tokens/s, MFU ",
      fixed(100 * model_flops_utilization(input, time.seconds), 1), " %, HFU ",
      fixed(100 * hardware_flops_utilization(input, time.seconds), 1), " %.</p>\n",
      "<h2>Time of each pipeline rank</h2>\n", legend(ranks), shares(ranks),
      "<h2>Passes</h2>\n<p class=\"quiet\">The first ", step.schedule.microbatches, " of ",
      input.layout.microbatches(input.work.global_batch_size),
      " microbatches; only exposed communication is shown.</p>\n", passes(step, scale),
      "<h2>Memory</h2>\n<p class=\"quiet\">Parameters, gradients and optimizer states, and the activations of the "
      "passes above; the dashed line is the memory of a device, ",
      human_bytes(input.hardware.memory_bytes()), ".</p>\n", memory(input, step, scale), "</body></html>\n");
}

}  // namespace mcpp
