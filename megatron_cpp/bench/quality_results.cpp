#include "megatron_cpp/bench/quality_results.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/strings.h"
#include "base/utc_time.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

/// Returns name, family and model of the processor, because virtual processors of different families can have the same
/// name.
std::string processor_name() {
  std::string name = "unknown", family, model;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first processor
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon)), value = trimmed(line.substr(colon + 1));
    if (key == "model name") name = value;
    if (key == "cpu family") family = value;
    if (key == "model") model = value;
  }
  return family.empty() ? name : str(name, ", family ", family, ", model ", model);
}

QualityRun parse_run(const JsonObject& object) {
  QualityRun run{.variant = object.text("variant"), .seed = object.integer("seed"), .curve = {}};
  if (object.find("failure") != nullptr) run.failure = object.text("failure");
  for (const Json& point : object.array("curve")) {
    check_input(point.is_array() && point.size() == 2 && point[0].is_number_integer() && point[1].is_number(),
                object.source(), ": 'curve' must consist of pairs of an iteration and a loss");
    run.curve.push_back({point[0].get<i64>(), point[1].get<double>()});
  }
  check_input(!run.curve.empty() || !run.failure.empty(), object.source(), ": 'curve' is empty");
  run.seconds = object.number("seconds");
  const JsonObject settings = object.object("settings");
  for (const auto& [key, value] : settings.json().items()) run.settings[key] = settings.text(key);
  return run;
}

std::string run_line(const QualityRun& run) {
  OrderedJson object{{"type", "run"}, {"variant", run.variant}, {"seed", run.seed}};
  if (run.failure.empty())
    object["loss"] = run.loss();
  else
    object["failure"] = run.failure;
  object["curve"] = OrderedJson::array();
  for (const HeldOutLoss& point : run.curve) object["curve"].push_back({point.iteration, point.loss});
  object["seconds"] = std::round(run.seconds * 10) / 10;
  object["settings"] = run.settings;
  return object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// Returns "training.train_iters: 100 in the file, 60 now" for every key that differs.
std::vector<std::string> changed_settings(const QualityRun& stored, const QualityRun& planned) {
  std::set<std::string> keys;
  for (const auto& [key, value] : stored.settings) keys.insert(key);
  for (const auto& [key, value] : planned.settings) keys.insert(key);
  std::vector<std::string> changes;
  for (const std::string& key : keys) {
    const auto value_in = [&](const QualityRun& run) {
      const auto found = run.settings.find(key);
      return found == run.settings.end() ? std::string("the default") : found->second;
    };
    if (value_in(stored) != value_in(planned))
      changes.push_back(str("\n  ", key, ": ", value_in(stored), " in the file, ", value_in(planned), " now"));
  }
  return changes;
}

}  // namespace

std::map<std::string, std::string> run_settings(const Config& config) {
  Config values = config, defaults;
  const std::vector<Field> fields = config_fields(values), default_fields = config_fields(defaults);
  const auto has_effect = [](const Field& field) {
    const std::string_view section = field.section();
    if (section == "checkpoint") return field.name() == "load" || field.name() == "finetune";
    if (section == "device") return field.name() == "device";
    return section != "logging" && field.key != "training.seed";
  };
  std::map<std::string, std::string> settings;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::string value = fields[i].print();
    if (has_effect(fields[i]) && value != default_fields[i].print()) settings[fields[i].key] = value;
  }
  return settings;
}

QualityResults::QualityResults(Path file) : file_(std::move(file)) {
  if (!std::filesystem::exists(file_)) return;
  text_ = read_text_file(file_);
  std::string_view rest = text_;
  for (i64 number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::string source = str(file_.string(), ":", number);
    const Json json = parse_json(line, source);
    const JsonObject object(json, source);
    const std::string& type = object.text("type");
    check_input(type == "start" || type == "run", source, ": has the type ", Json(type).dump(),
                ", which bench quality does not write; set --results to a different file");
    if (type == "run") runs_.push_back(parse_run(object));
  }
  if (!text_.empty() && !text_.ends_with('\n')) text_ += '\n';
}

bool QualityResults::contains(const QualityRun& planned) const {
  const auto stored = std::ranges::find_if(
      runs_, [&](const QualityRun& run) { return run.variant == planned.variant && run.seed == planned.seed; });
  if (stored == runs_.end()) return false;
  const std::vector<std::string> changes = changed_settings(*stored, planned);
  check_input(changes.empty(), file_.string(), ": has runs of the variant ", Json(planned.variant).dump(),
              " with other settings:", join(changes, ""), "\nSet --results to a different file");
  return true;
}

void QualityResults::add_start() {
  const OrderedJson object{{"type", "start"},
                           {"time", utc_now()},
                           {"processor", processor_name()},
                           {"cores", num_usable_cpus()},
                           {"program", split(version_text(), '\n').front()}};
  append(object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

void QualityResults::add(QualityRun run) {
  append(run_line(run));
  runs_.push_back(std::move(run));
}

void QualityResults::append(const std::string& line) {
  text_ += line + "\n";
  write_file_atomic(file_, text_);
}

std::vector<HeldOutLoss> read_held_out_losses(const Path& metrics) {
  std::vector<HeldOutLoss> losses;
  for (const std::string& line : split(read_text_file(metrics), '\n')) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || object.value("type", "") != "validation") continue;
    const Json& loss = object["lm_loss"];  // null if it is not finite
    losses.push_back({object["iteration"].get<i64>(),
                      loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN()});
  }
  return losses;
}

}  // namespace mcpp
