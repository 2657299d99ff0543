#include "megatron_cpp/monitor/jsonl_sink.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/strings.h"
#include "base/utc_time.h"

namespace mcpp {
namespace {

/// Keys for each MemoryColumn::MemoryLocation.
constexpr std::array kMemoryKeys{"peak_by_class", "in_host_by_class", "on_disk_by_class"};

/// Returns the lines of `text` for iterations up to `last`. Drops lines that are not JSON objects with an iteration,
/// such as a line truncated by a crash. Adds evaluations of iteration `last` to `evaluations`.
std::string lines_up_to(const std::string& text, i64 last, std::set<std::string>& evaluations) {
  std::string retained;
  for (const std::string& line : split(text, '\n')) {
    const OrderedJson object = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    const auto iteration = object.find("iteration");
    if (iteration == object.end() || !iteration->is_number_integer() || iteration->get<i64>() > last) continue;
    retained.append(line).append("\n");
    if (*iteration == last) evaluations.insert(object.value("type", ""));
  }
  return retained;
}

/// Serializes an object. Invalid UTF-8, which a path may contain, is replaced: it must not end the run.
std::string to_json_line(const OrderedJson& object) {
  return object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
}

}  // namespace

JsonlSink::JsonlSink(Path path, bool writes_every_iteration, StoredRef<Log> log)
    : path_(std::move(path)), writes_every_iteration_(writes_every_iteration), log_(log) {}

void JsonlSink::begin(ResumePoint& at) {
  if (path_.has_parent_path()) mcpp::create_directories(path_.parent_path());
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error) && at.iteration > 0) {
    const std::string text = read_text_file(path_);
    const std::string retained = lines_up_to(text, at.iteration, at.evaluations);
    if (retained != text) write_file_atomic(path_, retained);
  } else if (std::filesystem::is_regular_file(path_, error) && std::filesystem::file_size(path_) > 0) {
    std::filesystem::rename(path_, path_.string() + ".old", error);
    check_input(!error, path_.string(),
                ": cannot be renamed to keep the metrics of a different run: ", error.message());
  }
  file_ = AppendFile(path_, "metrics", log_);
}

void JsonlSink::write_train(const IterationStats& stats) {
  OrderedJson object{{"type", "train"},
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
  if (!stats.mtp_losses.empty()) object["mtp_losses"] = stats.mtp_losses;
  if (stats.output_z_loss > 0) object["output_z_loss"] = stats.output_z_loss;
  if (stats.mfu) object["mfu"] = *stats.mfu;
  if (stats.params_norm) object["params_norm"] = *stats.params_norm;
  if (stats.num_zeros) object["num_zeros"] = *stats.num_zeros;
  for (const LayerLogits& layer : stats.logits)
    object["attention_logits"].push_back(
        {{"layer", layer.layer}, {"max", layer.largest}, {"clipped_heads", layer.clipped_heads}});
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

void JsonlSink::write_evaluation(const ValidationStats& stats) {
  const OrderedJson object{{"type", stats.split},      {"iteration", stats.iteration},
                           {"lm_loss", stats.lm_loss}, {"perplexity", stats.perplexity()},
                           {"tokens", stats.tokens},   {"time", utc_now()}};
  file_.append(to_json_line(object));
}

void JsonlSink::write_task(const TaskStats& stats) {
  OrderedJson object{{"type", stats.split()}, {"iteration", stats.iteration}, {"items", stats.items}};
  for (const TaskStats::Metric& metric : stats.metrics) {
    object[metric.name] = metric.value;
    if (metric.standard_error) object[metric.name + "_stderr"] = *metric.standard_error;
  }
  object["time"] = utc_now();
  file_.append(to_json_line(object));
}

void JsonlSink::write_start(const RunStart& start) {
  OrderedJson object{{"type", "run"},
                     {"iteration", start.iteration},
                     {"train_iters", start.train_iters},
                     {"world_size", start.world_size},
                     {"host", start.host},
                     {"program", start.program},
                     {"device", start.device},
                     {"config", start.config},
                     {"time", utc_now()}};
  if (!start.stage.empty()) object["stage"] = start.stage;
  file_.append(to_json_line(object));
}

void JsonlSink::write_event(const RunEvent& event) {
  file_.append(to_json_line(OrderedJson{{"type", "event"},
                                        {"iteration", event.iteration},
                                        {"event", enum_name(event.kind)},
                                        {"text", event.text},
                                        {"time", utc_now()}}));
}

void JsonlSink::write_sample(const TextSample& sample) {
  file_.append(to_json_line(OrderedJson{{"type", "sample"},
                                        {"iteration", sample.iteration},
                                        {"prompt", sample.prompt},
                                        {"text", sample.text},
                                        {"time", utc_now()}}));
}

void JsonlSink::write_ranks(const RankTable& table) {
  constexpr i64 kRanksPerLine = 16;
  if (tables_++ % (1 + (std::ssize(table.ranks) - 1) / kRanksPerLine) != 0) return;
  OrderedJson object{{"type", "ranks"}, {"iteration", table.iteration}, {"time", utc_now()}};
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
    object[kMemoryKeys[static_cast<std::size_t>(column.location)]][std::string(name_of(column.memory_class))] =
        column.bytes;
  file_.append(to_json_line(object));
}

void JsonlSink::write_step(const StepRecord& step) {
  if (writes_every_iteration_) write_train(step.step);
  if (step.statistics.layers.empty()) return;
  OrderedJson object{
      {"type", "layer_statistics"}, {"iteration", step.step.iteration}, {"layers", OrderedJson::array()}};
  for (const StepStatistics::Layer& layer : step.statistics.layers) {
    OrderedJson layer_json{{"name", layer.name},
                           {"grad_norm", layer.grad_norm},
                           {"params_norm", layer.params_norm},
                           {"update_norm", layer.update_norm}};
    if (layer.activation_rms) layer_json["activation_rms"] = *layer.activation_rms;
    if (layer.activation_max) layer_json["activation_max"] = *layer.activation_max;
    object["layers"].push_back(std::move(layer_json));
  }
  object["time"] = utc_now();
  file_.append(to_json_line(object));
}

}  // namespace mcpp
