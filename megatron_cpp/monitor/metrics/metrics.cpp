#include "megatron_cpp/monitor/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

constexpr std::size_t kNameWidth = 48;

std::string dotted(const std::string& name) {
  const std::string begin = name + " ";
  return begin + std::string(begin.size() < kNameWidth ? kNameWidth - begin.size() : 0, '.') + ": ";
}

bool is_shorter(const TimerStats::RankTime& a, const TimerStats::RankTime& b) {
  return a.ms < b.ms;
}

}  // namespace

double TimerStats::min() const {
  return std::ranges::min_element(ranks, is_shorter)->ms;
}

double TimerStats::max() const {
  return std::ranges::max_element(ranks, is_shorter)->ms;
}

std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world) {
  const std::vector<std::string> texts = all_gather_strings(nlohmann::json(seconds).dump(), world);
  std::map<std::string, TimerStats> by_name;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const nlohmann::json of_rank = nlohmann::json::parse(texts[rank]);
    for (const auto& [name, value] : of_rank.items()) {
      by_name[name].name = name;
      by_name[name].ranks.push_back({.rank = static_cast<int>(rank), .ms = 1e3 * value.get<double>() / iterations});
    }
  }
  std::vector<TimerStats> timers;
  for (auto& [name, timer] : by_name) timers.push_back(std::move(timer));
  return timers;
}

std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option) {
  if (timers.empty()) return "";
  std::string text = option == TimingLogOption::Minmax ? "(min, max) time across ranks (ms):"
                     : option == TimingLogOption::Max  ? "max time across ranks (ms):"
                                                       : "times across ranks (ms):";
  for (const TimerStats& timer : timers) {
    if (option == TimingLogOption::All) {
      text += str("\n  ", timer.name, ":");
      for (const auto& [rank, ms] : timer.ranks)
        text += str("\n     rank ", pad_left(str(rank), 2), ": ", fixed(ms, 2));
    } else if (option == TimingLogOption::Minmax) {
      text += str("\n    ", dotted(timer.name), "(", fixed(timer.min(), 2), ", ", fixed(timer.max(), 2), ")");
    } else {
      text += str("\n    ", dotted(timer.name), fixed(timer.max(), 2));
    }
  }
  return text;
}

namespace {

/// Formats local time as "2026-01-31 23:59:59.123456".
std::string time_stamp(std::chrono::system_clock::time_point now) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(
      std::chrono::system_clock::time_point(std::chrono::floor<std::chrono::seconds>(now.time_since_epoch())));
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  const std::string micros = std::to_string((since_epoch % 1000000 + 1000000) % 1000000);
  return str(text.data(), ".", std::string(6 - micros.size(), '0'), micros);
}

std::string padded(i64 number, std::size_t width) {
  return pad_left(std::to_string(number), width);
}

}  // namespace

void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices) {
  const double seconds = stats.elapsed_ms / 1000;
  if (seconds > 0) {
    stats.tokens_per_second = tokens / seconds;
    stats.tflops = flops / seconds / 1e12 / static_cast<double>(devices);
  }
  if (peak_tflops > 0) stats.mfu = stats.tflops / peak_tflops;
  stats.eta_seconds = static_cast<double>(stats.train_iters - stats.iteration) * seconds;
}

std::string iteration_line(const IterationStats& stats, std::chrono::system_clock::time_point now) {
  std::string line =
      str(" [", time_stamp(now), "] iteration ", padded(stats.iteration, 8), "/", padded(stats.train_iters, 8), " |");
  const auto field = [&](const char* name, const std::string& value) { line += str(" ", name, ": ", value, " |"); };
  field("consumed samples", padded(stats.consumed_samples, 12));
  field("elapsed time per iteration (ms)", fixed(stats.elapsed_ms, 1));
  field("throughput per GPU (TFLOP/s/GPU)", fixed(stats.tflops, stats.tflops < 1 ? 3 : 1));
  field("learning rate", scientific(stats.learning_rate, 6));
  field("global batch size", padded(stats.global_batch_size, 5));
  field("lm loss", scientific(stats.lm_loss, 6));
  field("loss scale", fixed(stats.loss_scale, 1));
  field("grad norm", fixed(stats.grad_norm, 3));
  if (stats.num_zeros) field("num zeros", fixed(*stats.num_zeros, 0));
  if (stats.params_norm) field("params norm", fixed(*stats.params_norm, 3));
  field("number of skipped iterations", padded(stats.skipped_iterations, 3));
  field("number of nan iterations", padded(stats.nan_iterations, 3));
  if (!stats.experts.empty()) {
    const ExpertLayerStats experts = summarize(stats.experts);
    field("largest expert load", fixed(experts.max_load, 2));
    if (experts.balance_loss > 0) field("load balancing loss", fixed(experts.balance_loss, 4));
    if (experts.z_loss > 0) field("z loss", fixed(experts.z_loss, 4));
    if (experts.dropped > 0) field("dropped tokens", fixed(100 * experts.dropped, 2) + "%");
  }
  field("tokens/s", fixed(stats.tokens_per_second, 0));
  if (stats.mfu) field("MFU", fixed(*stats.mfu * 100, 1) + "%");
  if (!stats.ranks.empty()) {
    const RankStats ranks = mean_of(stats.ranks);
    field("bubble", fixed(ranks.bubble * 100, 1) + "%");
    field("exposed communication", fixed(ranks.exposed_communication * 100, 1) + "%");
    field("peak memory", human_bytes(ranks.peak_memory_bytes));
  }
  field("ETA", human_seconds(stats.eta_seconds));
  return line;
}

std::string progress_line(const IterationStats& stats) {
  return str("iteration ", stats.iteration, "/", stats.train_iters, " | loss ", fixed(stats.lm_loss, 3), " | ",
             human_count(stats.tokens_per_second), " tokens/s | ETA ", human_seconds(stats.eta_seconds));
}

double ValidationStats::perplexity() const {
  return std::exp(std::isnan(lm_loss) ? lm_loss : std::min(20.0, lm_loss));
}

std::string validation_lines(const ValidationStats& stats) {
  const std::string line =
      str(" ", stats.split, " loss at iteration ", stats.iteration, " | lm loss value: ", scientific(stats.lm_loss, 6),
          " | lm loss PPL: ", scientific(stats.perplexity(), 6), " | ");
  const std::string rule(line.size(), '-');
  return str(rule, "\n", line, "\n", rule);
}

void LogWindow::exclude_from_timing(const RankTimings& passed) {
  begin_ += passed;
  step_begin_ += passed;
}

void LogWindow::add(const IterationStats& step, const RankTimings& end) {
  const bool is_skipped = step.skipped_iterations > 0;
  iterations_ += 1;
  samples_ += step.global_batch_size;
  if (!is_skipped) {
    losses_ += 1;
    loss_sum_ += step.lm_loss;
  }
  last_ = step;
  if (is_skipped) last_.lm_loss = std::nan("");
  last_.elapsed_ms = 1000 * (end - step_begin_).clock;
  set_rates(last_, static_cast<double>(step.global_batch_size));
  if (work_.is_peak_measured && last_.tflops > work_.peak_tflops) {
    work_.peak_tflops = last_.tflops;
    set_rates(last_, static_cast<double>(step.global_batch_size));
  }
  const i64 skipped = means_.skipped_iterations, nan = means_.nan_iterations;
  means_ = step;
  means_.skipped_iterations += skipped;
  means_.nan_iterations += nan;
  end_ = step_begin_ = end;
  const auto iterations = static_cast<double>(iterations_);
  means_.elapsed_ms = 1000 * seconds().clock / iterations;
  set_rates(means_, static_cast<double>(samples_) / iterations);
}

void LogWindow::restart() {
  LogWindow next(work_);
  next.begin_ = next.end_ = end_;
  next.step_begin_ = step_begin_;
  *this = next;
}

void LogWindow::set_rates(IterationStats& stats, double samples) const {
  mcpp::set_rates(stats, samples * work_.tokens, samples * work_.flops, work_.peak_tflops, work_.devices);
}

namespace {

using Json = nlohmann::ordered_json;

using Evaluations = std::set<std::pair<std::string, i64>>;

/// Keys for each MemoryColumn::MemoryLocation.
constexpr std::array kMemoryKeys{"peak_by_class", "in_host_by_class", "on_disk_by_class"};

/// Returns the lines of `text` for iterations up to `last`. Drops lines that are not JSON objects with an iteration,
/// such as one truncated by a crash. Adds evaluations of iteration `last` to `evaluations`.
std::string lines_up_to(const std::string& text, i64 last, Evaluations& evaluations) {
  std::string kept;
  for (const std::string& line : split(text, '\n')) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto iteration = object.find("iteration");
    if (iteration == object.end() || !iteration->is_number_integer() || iteration->get<i64>() > last) continue;
    kept.append(line).append("\n");
    if (*iteration == last) evaluations.insert({object.value("type", ""), last});
  }
  return kept;
}

/// Formats the current time as "2026-01-31T23:59:59.123Z".
std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const std::time_t time = std::chrono::system_clock::to_time_t(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now - seconds).count();
  const std::string digits = std::to_string(millis);
  return str(text.data(), ".", std::string(3 - digits.size(), '0'), digits, "Z");
}

/// Serializes an object. Invalid UTF-8, which a path may contain, is replaced: it must not end the training.
std::string to_json_line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

constexpr std::array kEventNames{"save", "skip", "spike", "roll back", "stop", "end", "failure"};

void prepare(const Path& path, i64 resumed_iteration, Evaluations& evaluations) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;
  if (resumed_iteration > 0) {
    const std::string text = read_text_file(path);
    const std::string kept = lines_up_to(text, resumed_iteration, evaluations);
    if (kept != text) write_file_atomic(path, kept);
  } else if (std::filesystem::file_size(path) > 0) {
    std::filesystem::rename(path, path.string() + ".old", error);
    check_input(!error, path.string(), ": cannot be renamed to keep the metrics of a different run: ", error.message());
  }
}

}  // namespace

MetricsWriter::MetricsWriter(const Path& path, i64 resumed_iteration, StoredRef<Log> log) {
  if (path.empty()) return;
  if (path.has_parent_path()) mcpp::create_directories(path.parent_path());
  prepare(path, resumed_iteration, evaluations_);
  file_ = AppendFile(path, "metrics", log);
}

void MetricsWriter::write(const IterationStats& stats) {
  if (!file_.is_open()) return;
  Json object{{"type", "train"},
              {"iteration", stats.iteration},
              {"consumed_samples", stats.consumed_samples},
              {"global_batch_size", stats.global_batch_size},
              {"learning_rate", stats.learning_rate},
              {"weight_decay", stats.weight_decay},
              {"lm_loss", stats.lm_loss},
              {"loss_scale", stats.loss_scale},
              {"grad_norm", stats.grad_norm},
              {"skipped_iterations", stats.skipped_iterations},
              {"nan_iterations", stats.nan_iterations},
              {"elapsed_ms", stats.elapsed_ms},
              {"tokens_per_second", stats.tokens_per_second},
              {"tflops", stats.tflops},
              {"time", utc_now()}};
  if (stats.mfu) object["mfu"] = *stats.mfu;
  if (stats.params_norm) object["params_norm"] = *stats.params_norm;
  if (stats.num_zeros) object["num_zeros"] = *stats.num_zeros;
  if (!stats.ranks.empty()) {
    const RankStats mean = mean_of(stats.ranks);
    object["bubble"] = mean.bubble;
    object["exposed_communication"] = mean.exposed_communication;
    object["peak_memory_bytes"] = mean.peak_memory_bytes;
  }
  for (const TimerStats& timer : stats.timers) object["timers_ms"][timer.name] = {timer.min(), timer.max()};
  for (const ExpertLayerStats& layer : stats.experts) {
    object["experts"].push_back({{"layer", layer.layer},
                                 {"tokens_per_expert", layer.tokens},
                                 {"largest_load", layer.max_load},
                                 {"dropped", layer.dropped},
                                 {"load_balancing_loss", layer.balance_loss},
                                 {"z_loss", layer.z_loss}});
  }
  file_.append(to_json_line(object));
}

void MetricsWriter::write(const ValidationStats& stats) {
  evaluations_.insert({stats.split, stats.iteration});
  if (!file_.is_open()) return;
  const Json object{{"type", stats.split},      {"iteration", stats.iteration},
                    {"lm_loss", stats.lm_loss}, {"perplexity", stats.perplexity()},
                    {"tokens", stats.tokens},   {"time", utc_now()}};
  file_.append(to_json_line(object));
}

void MetricsWriter::write(const RunStart& start) {
  if (!file_.is_open()) return;
  file_.append(to_json_line(Json{{"type", "run"},
                                 {"iteration", start.iteration},
                                 {"train_iters", start.train_iters},
                                 {"world_size", start.world_size},
                                 {"host", start.host},
                                 {"program", start.program},
                                 {"device", start.device},
                                 {"config", start.config},
                                 {"time", utc_now()}}));
}

void MetricsWriter::write(const RunEvent& event) {
  if (!file_.is_open()) return;
  file_.append(to_json_line(Json{{"type", "event"},
                                 {"iteration", event.iteration},
                                 {"event", kEventNames[static_cast<std::size_t>(event.kind)]},
                                 {"text", event.text},
                                 {"time", utc_now()}}));
}

void MetricsWriter::write(const TextSample& sample) {
  if (!file_.is_open()) return;
  file_.append(to_json_line(Json{{"type", "sample"},
                                 {"iteration", sample.iteration},
                                 {"prompt", sample.prompt},
                                 {"text", sample.text},
                                 {"time", utc_now()}}));
}

void MetricsWriter::write(const RankTable& table) {
  if (!file_.is_open()) return;
  Json object{{"type", "ranks"}, {"iteration", table.iteration}, {"time", utc_now()}};
  for (const RankStats& rank : table.ranks) {
    object["compute_ms"].push_back(rank.compute_ms);
    object["peak_memory_bytes"].push_back(rank.peak_memory_bytes);
    object["bubble"].push_back(rank.bubble);
    object["exposed_communication"].push_back(rank.exposed_communication);
    OffloadedBytes offloaded;
    for (const OffloadedBytes& of_class : rank.offloaded) offloaded += of_class;
    object["in_host_bytes"].push_back(offloaded.in_host);
    object["on_disk_bytes"].push_back(offloaded.on_disk);
  }
  for (const MemoryColumn& column : memory_columns(table.ranks))
    object[kMemoryKeys[static_cast<std::size_t>(column.location)]][std::string(name_of(column.of))] = column.bytes;
  file_.append(to_json_line(object));
}

void MetricsWriter::write_layers(i64 iteration, const StepStatistics& step) {
  if (!file_.is_open()) return;
  Json object{{"type", "layer_statistics"}, {"iteration", iteration}, {"layers", Json::array()}};
  for (const StepStatistics::Layer& layer : step.layers) {
    Json one{{"name", layer.name}, {"grad_norm", layer.grad_norm}, {"params_norm", layer.params_norm}};
    if (layer.activation_rms) one["activation_rms"] = *layer.activation_rms;
    if (layer.activation_max) one["activation_max"] = *layer.activation_max;
    object["layers"].push_back(std::move(one));
  }
  object["time"] = utc_now();
  file_.append(to_json_line(object));
}

}  // namespace mcpp
