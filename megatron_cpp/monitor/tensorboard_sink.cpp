#include "megatron_cpp/monitor/tensorboard_sink.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/machine.h"
#include "base/strings.h"
#include "base/system_error.h"
#include "data/tokenizer/proto_reader.h"

namespace mcpp {
namespace {

constexpr std::array<u32, 256> make_crc_table() {
  constexpr u32 kReversedPolynomial = 0x82F63B78;
  std::array<u32, 256> table{};
  for (u32 byte = 0; byte < 256; ++byte) {
    u32 crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

/// Returns the bytes of a value in little-endian order.
template <class T>
std::string little_endian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <class T>
T from_little_endian(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

constexpr std::size_t kLength = sizeof(u64), kChecksum = sizeof(u32);

std::string varint(u64 value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}

// Protocol buffer encoding: field number and wire type, then the value.
enum Kind : u64 { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string key(u64 number, Kind kind) {
  return varint(number << 3 | kind);
}
std::string integer_field(u64 number, u64 value) {
  return key(number, kVarint) + varint(value);
}
std::string double_field(u64 number, double value) {
  return key(number, kFixed64) + little_endian(value);
}
std::string float_field(u64 number, float value) {
  return key(number, kFixed32) + little_endian(value);
}
std::string bytes_field(u64 number, std::string_view bytes) {
  return key(number, kBytes) + varint(bytes.size()).append(bytes);
}
std::string packed_field(u64 number, std::span<const double> values) {
  return bytes_field(number, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

// Field numbers.
namespace event {
constexpr u64 kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr u64 kValue = 1;
}
namespace value {
constexpr u64 kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}

std::string tagged(std::string_view tag, const std::string& rest) {
  return bytes_field(summary::kValue, bytes_field(value::kTag, tag) + rest);
}

}  // namespace

u32 crc32c(std::string_view bytes) {
  static constexpr std::array<u32, 256> kTable = make_crc_table();
  u32 crc = ~u32{0};
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<u8>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

u32 masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8;
}

std::string framed_record(std::string_view record) {
  const std::string length = little_endian<u64>(record.size());
  std::string frame = length + little_endian(masked_crc32c(length));
  frame.append(record);
  return frame + little_endian(masked_crc32c(record));
}

bool next_record(std::string_view& rest, std::string_view& record) {
  constexpr std::size_t kHead = kLength + kChecksum;
  if (rest.size() < kHead + kChecksum) return false;
  const std::string_view length = rest.substr(0, kLength);
  if (from_little_endian<u32>(rest.substr(kLength, kChecksum)) != masked_crc32c(length)) return false;
  const u64 size = from_little_endian<u64>(length);
  if (size > rest.size() - kHead - kChecksum) return false;
  const std::string_view payload = rest.substr(kHead, size);
  if (from_little_endian<u32>(rest.substr(kHead + size, kChecksum)) != masked_crc32c(payload)) return false;
  record = payload;
  rest.remove_prefix(kHead + size + kChecksum);
  return true;
}

EventRecord::EventRecord(double wall_time, i64 step) : wall_time_(wall_time), step_(step) {}

std::string EventRecord::file_header(double wall_time) {
  return double_field(event::kWallTime, wall_time) + bytes_field(event::kFileVersion, "brain.Event:2");
}

void EventRecord::add_scalar(std::string_view tag, double value) {
  summary_ += tagged(tag, float_field(value::kSimpleValue, static_cast<float>(value)));
}

void EventRecord::add_histogram(std::string_view tag, const Histogram& h) {
  const std::string message = double_field(1, h.min) + double_field(2, h.max) + double_field(3, h.count) +
                              double_field(4, h.sum) + double_field(5, h.sum_of_squares) + packed_field(6, h.limits) +
                              packed_field(7, h.counts);
  summary_ += tagged(tag, bytes_field(value::kHistogram, message));
}

void EventRecord::add_text(std::string_view tag, std::string_view text) {
  constexpr u64 kPluginData = 1, kPluginName = 1;                  // of SummaryMetadata
  constexpr u64 kType = 1, kShape = 2, kStrings = 8, kString = 7;  // of TensorProto; DT_STRING
  const std::string one_element = bytes_field(2, integer_field(1, 1));
  const std::string tensor =
      integer_field(kType, kString) + bytes_field(kShape, one_element) + bytes_field(kStrings, text);
  summary_ +=
      tagged(tag, bytes_field(value::kTensor, tensor) +
                      bytes_field(value::kMetadata, bytes_field(kPluginData, bytes_field(kPluginName, "text"))));
}

std::string EventRecord::bytes() const {
  return double_field(event::kWallTime, wall_time_) + integer_field(event::kStep, static_cast<u64>(step_)) +
         bytes_field(event::kSummary, summary_);
}

EventKey parse_event_key(std::string_view record, const std::string& source) {
  EventKey key;
  ProtoField field, value_field, tag;
  for (ProtoReader reader(record, source); reader.next(field);) {
    if (field.number == event::kStep) key.step = static_cast<i64>(field.integer);
    if (field.number != event::kSummary) continue;
    ProtoReader values(field.bytes, source);
    if (!values.next(value_field)) continue;
    for (ProtoReader parts(value_field.bytes, source); parts.next(tag);)
      if (tag.number == value::kTag) key.tag = tag.bytes;
  }
  return key;
}

namespace {

// File name: "events.out.tfevents.<seconds>.<host>-<process>.megatron_cpp". TensorBoard reads files with "tfevents" in
// their name, sorted by name.
constexpr std::string_view kBegin = "events.out.tfevents.", kEnd = ".megatron_cpp", kOldPrefix = "old_events.";
constexpr std::size_t kDigits = 10;

bool is_event_file(const std::string& name) {
  return name.starts_with(kBegin) && name.ends_with(kEnd) && name.size() > kBegin.size() + kDigits + kEnd.size();
}

std::vector<Path> files_in(const Path& folder) {
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_event_file(entry.path().filename().string())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

i64 seconds_of(const Path& file) {
  const std::string name = file.filename().string();
  i64 seconds = 0;
  std::from_chars(name.data() + kBegin.size(), name.data() + kBegin.size() + kDigits, seconds);
  return seconds;
}

/// Returns a name that sorts after all `files`, even if the clock went back or two starts happen within one second.
Path next_file(const Path& folder, const std::vector<Path>& files) {
  auto seconds = static_cast<i64>(wall_seconds());
  if (!files.empty()) seconds = std::max(seconds, seconds_of(files.back()) + 1);
  const std::string digits = std::to_string(seconds);
  return folder /
         str(kBegin, std::string(kDigits - std::min(kDigits, digits.size()), '0'), digits, ".", process_tag(), kEnd);
}

void rename_old_files(const Path& file) {
  const std::string name = file.filename().string();
  Path target = file;
  target.replace_filename(str(kOldPrefix, name.substr(kBegin.size())));
  std::error_code error;
  std::filesystem::rename(file, target, error);
  check_input(!error, file.string(), ": cannot be renamed to keep the events of a different run: ", error.message());
}

bool is_kept(std::string_view record, const std::string& source, const TensorboardWriter::KeepEventFn& should_keep) {
  const EventKey key = parse_event_key(record, source);
  return key.tag.empty() || should_keep(key.step, key.tag);
}

void drop_events(const Path& path, const TensorboardWriter::KeepEventFn& should_keep) {
  const MappedFile file(path);
  const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::string_view rest = all, record;
  std::string retained;
  while (next_record(rest, record))
    if (is_kept(record, path.string(), should_keep)) retained += framed_record(record);
  if (retained.size() != all.size()) write_file_atomic(path, retained);
}

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TensorboardWriter::TensorboardWriter(Path folder, StoredRef<Log> log) : folder_(std::move(folder)), log_(log) {
  constexpr const char* kKey = "logging.tensorboard_dir: ";
  std::error_code error;
  check_input(!std::filesystem::exists(folder_, error) || std::filesystem::is_directory(folder_, error), kKey,
              folder_.string(), " is a file; set a folder");
  mcpp::create_directories(folder_);
  MCPP_CHECK_SYSTEM(::access(folder_.c_str(), W_OK | X_OK) == 0, kKey, "cannot write to ", folder_.string());
}

void TensorboardWriter::begin(const KeepEventFn& should_keep) {
  const std::vector<Path> files = files_in(folder_);
  for (const Path& file : files) {
    try {
      should_keep ? drop_events(file, should_keep) : rename_old_files(file);
    } catch (const Error& error) {
      log_.warn(str(error.what(), "; TensorBoard may show steps of an earlier start twice"));
    }
  }
  file_ = AppendFile(next_file(folder_, files), "events for TensorBoard", log_);
  file_.append(framed_record(EventRecord::file_header(wall_seconds())));
}

namespace {

constexpr std::string_view kVsSamples = " vs samples", kPerplexity = " ppl", kLoss = "lm loss",
                           kConfiguration = "configuration", kTask = "task ";

std::string evaluation_tag(std::string_view split) {
  return str(kLoss, " ", split);
}

/// Adds a histogram, if the values were sorted into buckets.
void add_histogram(const std::string& tag, const ValueStats& stats, EventRecord& event) {
  if (stats.buckets.empty()) return;
  std::vector<double> limits, counts;
  for (const auto& [limit, count] : stats.buckets) {
    limits.push_back(std::min<double>(limit, std::numeric_limits<double>::max()));
    counts.push_back(count);
  }
  event.add_histogram(tag, {.min = limits.front(),
                            .max = limits.back(),
                            .count = stats.count,
                            .sum = stats.sum,
                            .sum_of_squares = stats.sum_of_squares,
                            .limits = limits,
                            .counts = counts});
}

}  // namespace

/// Values of one step on the axis of iterations; some of them also on the axis of samples.
class TensorboardSink::Record {
 public:
  Record(i64 iteration, i64 consumed_samples)
      : by_iteration_(wall_seconds(), iteration), by_samples_(wall_seconds(), consumed_samples) {}

  void add(std::string_view tag, double value) { by_iteration_.add_scalar(tag, value); }
  void add_on_both_axes(std::string_view tag, double value) {
    add(tag, value);
    by_samples_.add_scalar(str(tag, kVsSamples), value);
  }
  void write_to(TensorboardWriter& writer) const {
    for (const EventRecord* event : {&by_iteration_, &by_samples_})
      if (!event->is_empty()) writer.write(*event);
  }

 private:
  EventRecord by_iteration_, by_samples_;
};

bool is_valid_after_resume(i64 step, std::string_view tag, const ResumePoint& at) {
  const bool is_by_samples = tag.ends_with(kVsSamples);
  if (is_by_samples) tag.remove_suffix(kVsSamples.size());
  const i64 last = is_by_samples ? at.consumed_samples : at.iteration;
  if (step != last) return step < last;
  if (tag == kConfiguration) return false;
  if (tag.ends_with(kPerplexity)) tag.remove_suffix(kPerplexity.size());
  if (tag.starts_with(kTask)) {
    tag.remove_prefix(kTask.size());
    return at.evaluations.contains(str("task-", tag.substr(0, tag.rfind(' '))));
  }
  const std::string prefix = evaluation_tag("");
  return !tag.starts_with(prefix) || at.evaluations.contains(std::string(tag.substr(prefix.size())));
}

TensorboardSink::TensorboardSink(StoredRef<Config> config, StoredRef<Log> log)
    : config_(config), writer_(config_.logging.tensorboard_dir, log) {}

void TensorboardSink::begin(ResumePoint& at) {
  const auto is_still_valid = [&](i64 step, std::string_view tag) { return is_valid_after_resume(step, tag, at); };
  writer_.begin(at.iteration > 0 ? TensorboardWriter::KeepEventFn(is_still_valid) : nullptr);
  EventRecord text(wall_seconds(), at.iteration);
  text.add_text(kConfiguration, str("```toml\n", print_config(config_), "```\n"));
  writer_.write(text);
}

void TensorboardSink::write_step(const StepRecord& finished) {
  if (finished.step.iteration % config_.logging.tensorboard_log_interval == 0) write_curves(finished);
  write_statistics(finished.statistics, finished.step.iteration);
}

void TensorboardSink::write_curves(const StepRecord& finished) {
  const IterationStats& step = finished.step;
  Record record(step.iteration, step.consumed_samples);
  record.add_on_both_axes(kLoss, step.lm_loss);
  for (std::size_t i = 0; i < step.mtp_losses.size(); ++i)
    record.add_on_both_axes(str("mtp_", i + 1, " loss"), step.mtp_losses[i]);
  if (step.output_z_loss > 0) record.add_on_both_axes("output_z_loss", step.output_z_loss);
  record.add_on_both_axes("learning-rate", step.learning_rate);
  if (config_.stage) record.add_on_both_axes("stage", static_cast<double>(config_.stage->number));
  record.add_on_both_axes("batch-size", static_cast<double>(step.global_batch_size));
  record.add_on_both_axes("loss-scale", step.loss_scale);
  record.add_on_both_axes("grad-norm", step.grad_norm);
  if (step.num_zeros) record.add_on_both_axes("num-zeros", *step.num_zeros);
  if (!step.logits.empty())
    record.add_on_both_axes("max_attention_logit", std::ranges::max(step.logits, {}, &LayerLogits::largest).largest);
  for (const LayerLogits& layer : step.logits)
    record.add(str("max_attention_logit/layer_", layer.layer), layer.largest);
  if (step.params_norm) record.add_on_both_axes("params-norm", *step.params_norm);
  record.add("iteration-time", step.elapsed_ms / 1000);
  record.add("throughput", step.tflops);
  record.add("tokens-per-second", step.tokens_per_second);
  if (step.mfu) record.add("mfu", *step.mfu);
  record.add("mem-allocated-bytes", static_cast<double>(finished.memory.bytes));
  record.add("mem-max-allocated-bytes", static_cast<double>(finished.memory.peak));
  record.add("skipped-iterations", static_cast<double>(step.skipped_iterations));
  if (!step.experts.empty()) {
    const ExpertLayerStats experts = summarize(step.experts);
    record.add("load_balancing_loss", experts.balance_loss);
    record.add("z_loss", experts.z_loss);
    for (const ExpertLayerStats& layer : step.experts) {
      record.add(str("moe/load_balancing_loss_layer_", layer.layer), layer.balance_loss);
      record.add(str("moe/largest_load_layer_", layer.layer), layer.max_load);
      record.add(str("moe/dropped_layer_", layer.layer), layer.dropped);
    }
  }
  record.write_to(writer_);
}

void TensorboardSink::write_line(const IterationStats& line) {
  Record record(line.iteration, line.consumed_samples);
  if (!line.ranks.empty()) {
    const RankStats mean = mean_of(line.ranks);
    record.add("bubble", mean.bubble);
    record.add("exposed-communication", mean.exposed_communication);
    record.add("compute-time", mean.compute_ms / 1000);
    record.add("mem-max-allocated-bytes-of-ranks", mean.peak_memory_bytes);
  }
  for (const TimerStats& timer : line.timers) record.add(timer.name + "-time", timer.max() / 1000);
  record.write_to(writer_);
}

void TensorboardSink::write_statistics(const StepStatistics& statistics, i64 iteration) {
  EventRecord event(wall_seconds(), iteration);
  for (const StepStatistics::Layer& layer : statistics.layers) {
    event.add_scalar(str("grad-norm/", layer.name), layer.grad_norm);
    event.add_scalar(str("params-norm/", layer.name), layer.params_norm);
    event.add_scalar(str("update-norm/", layer.name), layer.update_norm);
    if (layer.activation_rms) event.add_scalar(str("activation-rms/", layer.name), *layer.activation_rms);
    if (layer.activation_max) event.add_scalar(str("activation-max/", layer.name), *layer.activation_max);
  }
  for (const auto& [name, stats] : statistics.weights) add_histogram("weights/" + name, stats, event);
  for (const auto& [name, stats] : statistics.gradients) add_histogram("gradients/" + name, stats, event);
  if (!event.is_empty()) writer_.write(event);
}

void TensorboardSink::write_evaluation(const ValidationStats& stats) {
  Record record(stats.iteration, stats.consumed_samples);
  record.add_on_both_axes(evaluation_tag(stats.split), stats.lm_loss);
  record.add_on_both_axes(str(evaluation_tag(stats.split), kPerplexity), stats.perplexity());
  record.write_to(writer_);
}

void TensorboardSink::write_task(const TaskStats& stats) {
  Record record(stats.iteration, stats.consumed_samples);
  for (const TaskStats::Metric& metric : stats.metrics)
    record.add_on_both_axes(str(kTask, stats.task, " ", metric.name), metric.value);
  record.write_to(writer_);
}

}  // namespace mcpp
