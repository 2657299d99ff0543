#include "plan/report/report.h"

#include <algorithm>

#include "base/json/json.h"
#include "base/number_text.h"
#include "base/strings.h"
#include "plan/report/step_parts.h"
#include "plan/utilization.h"

namespace mcpp {
namespace {

std::string percent(double part) {
  return fixed(100 * part, 1) + " %";
}

std::string line(const std::string& name, double seconds, double all) {
  return str("  ", pad_right(name, 34), pad_left(fixed(1e3 * seconds, 1), 12), pad_left(percent(seconds / all), 10),
             "\n");
}

std::string row(const Job& job, const Candidate& candidate) {
  const double seconds = candidate.time.seconds;
  return str(pad_left(fixed(seconds, 3), 9), pad_left(fixed(model_tflops(job, seconds), 0), 9),
             pad_left(percent(model_flops_utilization(job, seconds)), 9),
             pad_left(human_bytes(candidate.memory.total()), 12), "  ", candidate.layout.describe(), "\n");
}

}  // namespace

std::string recipe_text(const std::vector<RecipeStep>& recipe) {
  std::string text = "the usual recipe:\n";
  for (const RecipeStep& step : recipe) text += str("  ", step.rule, "\n     ", step.here, "\n");
  return text;
}

std::string search_text(const Job& job, const SearchResult& result) {
  std::string text = str(job.layout.world_size, " x ", job.hardware.device.name, ": ", result.possible,
                         " layouts are possible, ", result.fitting, " fit\n", pad_left("seconds", 9),
                         pad_left("TFLOP/s", 9), pad_left("MFU", 9), pad_left("memory", 12), "  layout\n");
  for (const Candidate& candidate : result.best) text += row(job, candidate);
  text += "and not:\n";
  for (const Alternative& other : result.alternatives)
    text += str("  ", pad_right(other.kind, 22), other.reason,
                other.fits ? str(" (", other.candidate.layout.describe(), ")") : "", "\n");
  return text;
}

std::string step_text(const Job& job, const StepTime& t) {
  const double all = t.seconds;
  std::string text = str("a step of ", job.layout.describe(), "\n  ", pad_right(str("on pipeline rank ", t.rank), 34),
                         pad_left("ms", 12), pad_left("of step", 10), "\n");
  for (const StepPart& part : step_parts(t))
    if (part.seconds > 0) text += line(part.name, part.seconds, all);
  text += line("step", all, all);
  const double tokens = job.work.tokens() / all;
  return text + str("  ", human_count(tokens), " tokens/s, ", fixed(model_tflops(job, all), 1),
                    " TFLOP/s of a device, MFU ", percent(model_flops_utilization(job, all)), ", HFU ",
                    percent(hardware_flops_utilization(job, all)), "\n");
}

std::string step_json(const Job& job, const StepTime& t, double memory_bytes) {
  OrderedJson json{{"layout", job.layout.describe()},
                   {"ranks", job.layout.world_size},
                   {"step_s", t.seconds},
                   {"tokens_per_s", job.work.tokens() / t.seconds},
                   {"mfu", model_flops_utilization(job, t.seconds)},
                   {"hfu", hardware_flops_utilization(job, t.seconds)},
                   {"memory_bytes", memory_bytes}};
  for (const StepPart& part : step_parts(t)) json["parts_s"][part.key] = part.seconds;
  return json.dump();
}

std::string gains_text(const std::vector<Gain>& gains) {
  std::string text = "the same layout would gain by\n";
  for (const Gain& gain : gains) text += str("  ", pad_right(gain.change, 44), pad_left(percent(gain.part), 9), "\n");
  return text;
}

std::string failures_text(const FailureLoss& loss) {
  return str("failures: ", fixed(loss.failures_per_day, 2), " a day; a checkpoint each ",
             human_seconds(loss.interval_seconds), " loses least, ", percent(loss.lost), " of the time\n");
}

std::string deadline_text(const Job& job, const std::optional<TimedWorld>& found, const Deadline& deadline) {
  const std::string what = str(human_count(deadline.tokens), " tokens in ", fixed(deadline.hours, 1), " hours");
  if (!found) return str(what, ": no number of ", job.hardware.device.name, " that its links join is enough\n");
  const double device_hours = found->hours * static_cast<double>(found->point.world_size);
  std::string text = str(what, ": ", found->point.world_size, " x ", job.hardware.device.name, " take ",
                         fixed(found->hours, 1), " hours, ", human_count(device_hours), " device hours");
  if (deadline.price > 0)
    text += str(", at ", fixed(deadline.price, 2), " each ", human_count(device_hours * deadline.price));
  return text + "\n  " + found->point.found.best.front().layout.describe() + "\n";
}

std::string scaling_text(const Job& job, const std::vector<ScalingPoint>& points, bool is_weak) {
  std::string text = str(is_weak ? "weak" : "strong", " scaling on ", job.hardware.device.name, "\n",
                         pad_left("ranks", 8), pad_left("batch", 8), pad_left("seconds", 10), pad_left("tokens/s", 10),
                         pad_left("efficiency", 12), "  layout\n");
  for (const ScalingPoint& point : points) {
    text += pad_left(str(point.world_size), 8) + pad_left(str(point.global_batch_size), 8);
    if (point.found.best.empty()) {
      text += str("  ", point.found.possible > 0 ? "nothing fits" : point.conflict, "\n");
      continue;
    }
    const Candidate& best = point.found.best.front();
    const double tokens = static_cast<double>(point.global_batch_size * job.work.model.seq_length) / best.time.seconds;
    text += str(pad_left(fixed(best.time.seconds, 3), 10), pad_left(human_count(tokens), 10),
                pad_left(percent(point.efficiency), 12), "  ", best.layout.describe(), "\n");
  }
  if (!is_weak) text += str("by Amdahl's law ", percent(serial_part(points)), " of the first step is not shared\n");
  return text;
}

}  // namespace mcpp
