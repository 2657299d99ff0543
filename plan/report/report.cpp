#include "plan/report/report.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "plan/utilization.h"

namespace mcpp {

std::vector<StepPart> pass_parts(const PassTime& t) {
  return {{"gemms", "GEMMs", "#3f74c4", t.gemms},
          {"attention", "attention", "#6a9be0", t.attention},
          {"elementwise", "elementwise", "#a5c3ee", t.elementwise},
          {"tensor_parallel", "tensor-parallel communication", "#e08a3c", t.tensor_parallel},
          {"context_parallel", "context-parallel communication", "#c8551b", t.context_parallel},
          {"expert_parallel", "token dispatch and combine", "#b83274", t.expert_parallel},
          {"zero_in_microbatches", "ZeRO in each microbatch", "#8246c4", t.data_parallel},
          {"offload", "waits for offloaded data", "#7d5a44", t.offloaded}};
}

std::vector<StepPart> step_parts(const StepTime& t) {
  std::vector<StepPart> parts = pass_parts(t.work);
  parts.insert(parts.end(), {{"core_wait", "waits for a core", "#b9bec6", t.core_wait},
                             {"bubble", "waits in the pipeline", "#d5d9df", t.bubble},
                             {"messages", "messages between stages", "#14805e", t.messages},
                             {"gradients_and_weights", "exposed gradients and weights", "#af80da", t.data_parallel},
                             {"optimizer", "optimizer", "#3f9c74", t.optimizer},
                             {"data", "data", "#80700f", t.data}});
  return parts;
}

namespace {

/// Returns text like "0.250", "12.5" or "1.2K".
std::string hours_text(double hours) {
  if (hours >= 1000) return human_count(hours);
  return fixed(hours, hours < 10 ? 3 : 1);
}

std::string percent(double part) {
  return fixed(100 * part, 1) + " %";
}

/// Returns " with megatron_core"; "" for this program.
std::string program_text(const PredictionInput& input) {
  return input.program.name == KernelTraits().name ? "" : str(" with ", input.program.name);
}

std::string line(const std::string& name, double seconds, double all) {
  return str("  ", pad_right(name, 34), pad_left(fixed(1e3 * seconds, 1), 12), pad_left(percent(seconds / all), 10),
             "\n");
}

std::string row(const PredictionInput& input, const Candidate& candidate) {
  const double seconds = candidate.time.seconds;
  return str(pad_left(fixed(seconds, 3), 9), pad_left(fixed(model_tflops(input, seconds), 0), 9),
             pad_left(percent(model_flops_utilization(input, seconds)), 9),
             pad_left(human_bytes(candidate.memory.total()), 12), "  ", candidate.layout.describe(),
             candidate.reason.empty() ? "" : str(" (", candidate.reason, ")"), "\n");
}

/// Returns why the search does not follow a rule: the alternative with the layout that the rule advises.
std::string deviation(const RuleOfThumb& step, const SearchResult& result) {
  if (step.kind.empty()) return "";
  const auto other = std::ranges::find(result.alternatives, step.kind, &Alternative::kind);
  return other == result.alternatives.end() ? "" : str("; not followed: ", step.kind, ": ", other->reason);
}

}  // namespace

std::string recipe_text(const std::vector<RuleOfThumb>& recipe, const SearchResult& result) {
  std::string text = "rule-of-thumb layout:\n";
  for (const RuleOfThumb& step : recipe)
    text += str("  ", step.rule, "\n     ", step.advice, deviation(step, result), "\n");
  return text;
}

std::string search_text(const PredictionInput& input, const SearchResult& result) {
  std::string text =
      str(input.layout.world_size(), " x ", input.hardware.device.name, program_text(input), ": ", result.possible,
          " layouts are possible, ", result.fitting, " fit\n", pad_left("seconds", 9), pad_left("TFLOP/s", 9),
          pad_left("MFU", 9), pad_left("memory", 12), "  layout (why it is not the first)\n");
  for (const Candidate& candidate : result.best) text += row(input, candidate);
  if (result.simpler)
    text += str("preferred, because it is simpler than the first and ",
                fixed(100 * (result.simpler->time.seconds / result.best.front().time.seconds - 1), 1),
                " % slower, less than predictions are accurate:\n", row(input, *result.simpler));
  text += "and not:\n";
  for (const Alternative& alternative : result.alternatives)
    text += str("  ", pad_right(alternative.kind, 22), alternative.reason,
                alternative.fits ? str(" (", alternative.candidate.layout.describe(), ")") : "", "\n");
  return text;
}

std::string step_text(const PredictionInput& input, const StepTime& t) {
  const double all = t.seconds;
  std::string text =
      str("a step of ", input.layout.describe(), program_text(input), "\n  ",
          pad_right(str("on pipeline rank ", t.rank), 34), pad_left("ms", 12), pad_left("of step", 10), "\n");
  for (const StepPart& part : step_parts(t))
    if (part.seconds > 0) text += line(part.name, part.seconds, all);
  text += line("step", all, all);
  const double tokens = input.work.tokens() / all;
  return text + str("  ", human_count(tokens), " tokens/s, ", fixed(model_tflops(input, all), 1),
                    " TFLOP/s of a device, MFU ", percent(model_flops_utilization(input, all)), ", HFU ",
                    percent(hardware_flops_utilization(input, all)), "\n");
}

std::string step_json(const PredictionInput& input, const StepTime& t, const PredictedMemory& memory,
                      const std::optional<TrainingCost>& cost) {
  OrderedJson json{{"implementation", input.program.name},
                   {"layout", input.layout.describe()},
                   {"ranks", input.layout.world_size()},
                   {"step_s", t.seconds},
                   {"tokens_per_s", input.work.tokens() / t.seconds},
                   {"mfu", model_flops_utilization(input, t.seconds)},
                   {"hfu", hardware_flops_utilization(input, t.seconds)},
                   {"memory_bytes", memory.bytes},
                   {"fits", memory.fits}};
  if (cost) json["training_hours"] = cost->hours, json["device_hours"] = cost->device_hours;
  for (const StepPart& part : step_parts(t)) json["parts_s"][part.key] = part.seconds;
  return json.dump();
}

std::string gains_text(const std::vector<Speedup>& gains) {
  std::string text = "speedup of the same layout with\n";
  for (const Speedup& gain : gains)
    text += str("  ", pad_right(gain.change, 44), pad_left(percent(gain.fraction), 9), "\n");
  return text;
}

std::string failures_text(const FailureLoss& loss) {
  return str("failures: ", fixed(loss.failures_per_day, 2), " a day; a checkpoint every ",
             human_seconds(loss.interval_seconds), " minimizes the loss, ", percent(loss.lost_fraction),
             " of the time\n");
}

std::string goodput_text(const std::vector<GoodputPoint>& points) {
  std::string text =
      str("goodput with random failures (", points.front().goodput.failures, " simulated for each line):\n",
          "  checkpoints   every n steps   on disks every      wait   lost steps per failure   goodput\n");
  const auto best_of = [&](bool is_in_memory) {
    const GoodputPoint* best = nullptr;
    for (const GoodputPoint& point : points) {
      const bool is_better = !best || point.goodput.fraction > best->goodput.fraction;
      if (point.is_in_memory == is_in_memory && is_better) best = &point;
    }
    return best;
  };
  const GoodputPoint *disk = best_of(false), *memory = best_of(true);
  for (const GoodputPoint& point : points) {
    text += str("  ", point.is_in_memory ? "in memory" : "on disks ", pad_left(std::to_string(point.interval), 18),
                pad_left(std::to_string(point.disk_interval), 17), pad_left(human_seconds(point.stall_seconds), 10),
                pad_left(fixed(point.goodput.lost_steps, 1), 25), pad_left(percent(point.goodput.fraction), 10),
                &point == disk || &point == memory ? "  best" : "", "\n");
  }
  if (memory)
    text += "  each node keeps a copy of the previous node's checkpoints in memory (checkpoint.local_replicas = 1)\n";
  return text;
}

std::string cost_text(const TrainingCost& cost, double price) {
  if (!std::isfinite(cost.hours)) return "never end: devices fail before any progress is made";
  std::string text = str("take ", hours_text(cost.hours), " hours, ", hours_text(cost.device_hours), " device hours");
  if (price > 0) text += str(", at ", fixed(price, 2), " each ", human_count(cost.device_hours * price));
  return text;
}

std::string deadline_text(const PredictionInput& input, const MinDevices& devices, const Deadline& deadline) {
  const std::string name = input.hardware.device.name,
                    what = str(human_count(deadline.tokens), " tokens in ", hours_text(deadline.hours), " hours: ");
  const auto describe_point = [&](const ScalingPoint& point) {
    return str(point.world_size, " x ", name, " ", cost_text(point.cost, deadline.price), "\n  ",
               point.search.best.front().layout.describe());
  };
  if (devices.smallest) return what + describe_point(*devices.smallest) + "\n";
  const std::string prefix = str(what, "no number of ", name, " that the links connect suffices; ");
  if (devices.fastest && !std::isfinite(devices.fastest->cost.hours))
    return prefix + "devices fail before any progress is made";
  if (devices.fastest) return prefix + "the fastest of those tried: " + describe_point(*devices.fastest);
  if (devices.min_hours > deadline.hours)
    return prefix + str("all ", input.hardware.links.ranks.back(), " at their highest rate would take ",
                        hours_text(devices.min_hours), " hours");
  return prefix + "no layout fits for any number that was tried";
}

std::string scaling_text(const PredictionInput& input, const std::vector<ScalingPoint>& points, bool is_weak,
                         double tokens) {
  std::string text =
      str(is_weak ? "weak" : "strong", " scaling on ", input.hardware.device.name, program_text(input),
          "; device hours are of ", human_count(tokens), " tokens\n", pad_left("ranks", 8), pad_left("batch", 8),
          pad_left("seconds", 10), pad_left("tokens/s", 10), pad_left("efficiency", 12), pad_left("memory", 12),
          pad_left("device hours", 14), "  layout\n");
  for (const ScalingPoint& point : points) {
    text += pad_left(str(point.world_size), 8) + pad_left(str(point.global_batch_size), 8);
    if (!point.fits()) {
      text += str("  ", point.search.possible > 0 ? "nothing fits" : point.conflict, "\n");
      continue;
    }
    const Candidate& best = point.search.best.front();
    const double step_tokens = static_cast<double>(point.global_batch_size * input.work.model.seq_length);
    text += str(pad_left(fixed(best.time.seconds, 3), 10), pad_left(human_count(step_tokens / best.time.seconds), 10),
                pad_left(percent(point.efficiency), 12), pad_left(human_bytes(best.memory.total()), 12),
                pad_left(std::isfinite(point.cost.hours) ? hours_text(point.cost.device_hours) : "never", 14), "  ",
                best.layout.describe(), "\n");
  }
  const bool shows_growth = std::ranges::count_if(points, &ScalingPoint::fits) > 1;
  if (!is_weak && shows_growth)
    text += str("by Amdahl's law, ", percent(serial_fraction(points)), " of the first step is serial\n");
  return text;
}

std::string best_point_text(const ScalingPoint& best, Objective objective, const Deadline& training) {
  const Candidate& candidate = best.search.best.front();
  return str("best by ", enum_name(objective), ": ", best.world_size, best.world_size == 1 ? " rank, " : " ranks, ",
             human_bytes(candidate.memory.total()), " each; ", human_count(training.tokens), " tokens ",
             cost_text(best.cost, training.price), "\n");
}

}  // namespace mcpp
