// TensorBoard log of a run: a folder with one event file per start of the run.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/io/append_file.h"
#include "base/types.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/monitor/metrics_sink.h"

namespace mcpp {

// TensorBoard event files: protocol buffers "Event" in TFRecord frames (length, its checksum, data, its checksum).
// Implements the subset of tensorboard/compat/proto/{event,summary,tensor}.proto that this program writes.

/// Returns the CRC-32C (Castagnoli) of the bytes, as in iSCSI (RFC 3720, B.4).
u32 crc32c(std::string_view bytes);
/// Returns TFRecord's masked checksum: the checksum rotated plus a constant, which keeps checksums effective for data
/// that contains checksums.
u32 masked_crc32c(std::string_view bytes);

/// Returns the record with its frame, as stored in the file.
std::string framed_record(std::string_view record);
/// Reads the record at the start of `rest` and advances past it. At the end, and if the record is truncated or damaged,
/// returns false and leaves `rest` unchanged.
bool next_record(std::string_view& rest, std::string_view& record);

/// Histogram: counts of values between limits.
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_of_squares = 0;
  std::span<const double> limits;  ///< upper limits, ascending
  std::span<const double> counts;  ///< one per limit
};

/// Builder of one event, which holds the values of one step. Scalars are stored as fp32.
class EventRecord {
 public:
  /// `wall_time` is in seconds since 1970. `step` is the position on TensorBoard's "step" axis.
  EventRecord(double wall_time, i64 step);
  /// Returns the first record of every file.
  static std::string file_header(double wall_time);

  void add_scalar(std::string_view tag, double value);
  void add_histogram(std::string_view tag, const Histogram& histogram);
  /// Adds Markdown text for TensorBoard's text page.
  void add_text(std::string_view tag, std::string_view text);
  bool is_empty() const { return summary_.empty(); }
  /// Returns the encoded message without its frame.
  std::string bytes() const;

 private:
  double wall_time_;
  i64 step_;
  std::string summary_;  // encoded values
};

/// Identity of an event.
struct EventKey {
  i64 step = 0;
  std::string tag;  ///< tag of the first value; empty without values
};
/// Parses step and tag of an event. Throws BadInput, naming `source`, if the bytes are not a valid message.
EventKey parse_event_key(std::string_view record, const std::string& source);

/// Writes one event file. A full disk loses events but does not stop training (AppendFile).
class TensorboardWriter {
 public:
  /// Creates the folder. Throws BadInput, naming logging.tensorboard_dir, if it cannot be created or written to.
  TensorboardWriter(Path folder, StoredRef<Log> log);

  /// Returns true if an event of an earlier start of the run is still valid.
  using KeepEventFn = std::function<bool(i64 step, std::string_view tag)>;
  /// Prepares the folder; call it before the first write(). A resumed run removes from this program's event files the
  /// events that `should_keep` rejects and those truncated by a crash, so that no step appears twice. A new run
  /// (`should_keep` is null) renames existing files to old_events.*, which TensorBoard ignores.
  void begin(const KeepEventFn& should_keep);
  void write(const EventRecord& event) { file_.append(framed_record(event.bytes())); }

 private:
  Path folder_;
  const Log& log_;
  AppendFile file_;
};

/// Returns the time in seconds since 1970.
double wall_seconds();

/// Writes training metrics with Megatron-LM's tags; docs/logging_and_profiling.md lists them.
class TensorboardSink final : public MetricsSink {
 public:
  /// Throws BadInput if logging.tensorboard_dir is unusable.
  TensorboardSink(StoredRef<Config> config, StoredRef<Log> log);

  /// Drops events of earlier starts for steps that will be repeated, and evaluations that are missing from
  /// metrics.jsonl, since they will be repeated too. Writes the configuration.
  void begin(ResumePoint& at) override;
  /// Writes curves at logging.tensorboard_log_interval, and the step's statistics of layers and parameters.
  void write_step(const StepRecord& finished) override;
  void write_line(const IterationStats& line) override;
  void write_evaluation(const ValidationStats& stats) override;
  void write_task(const TaskStats& stats) override;

 private:
  class Record;
  void write_curves(const StepRecord& finished);
  void write_statistics(const StepStatistics& statistics, i64 iteration);

  const Config& config_;
  TensorboardWriter writer_;
};

/// Returns true if an event of an earlier start is still valid for a run resumed at `at`.
bool is_valid_after_resume(i64 step, std::string_view tag, const ResumePoint& at);

}  // namespace mcpp
