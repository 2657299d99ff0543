// metrics.jsonl: one JSON object per line for each record of a training run.
#pragma once
#include "base/io/append_file.h"
#include "megatron_cpp/monitor/metrics_sink.h"

namespace mcpp {

/// Appends JSON objects to a file (AppendFile). Non-finite values are written as null. docs/report.md lists the types
/// and fields.
///
/// A run resumed at iteration N keeps the lines up to N. It drops later lines, whose iterations are computed again, and
/// a line truncated by a crash, so no iteration appears twice. A new run (N = 0) renames an existing file to
/// <path>.old.
class JsonlSink final : public MetricsSink {
 public:
  /// If `writes_every_iteration`, writes a line for every step instead of for every log line.
  JsonlSink(Path path, bool writes_every_iteration, StoredRef<Log> log);

  /// Throws BadInput if the file cannot be opened. Adds the evaluations that the file contains to `at`.
  void begin(ResumePoint& at) override;
  void write_start(const RunStart& start) override;
  void write_step(const StepRecord& step) override;
  void write_line(const IterationStats& line) override {
    if (!writes_every_iteration_) write_train(line);
  }
  /// Writes a table. With many ranks, skips most tables, so that tables take up about as much of the file as lines.
  void write_ranks(const RankTable& table) override;
  void write_evaluation(const ValidationStats& stats) override;
  void write_task(const TaskStats& stats) override;
  void write_sample(const TextSample& sample) override;
  void write_event(const RunEvent& event) override;

 private:
  void write_train(const IterationStats& stats);

  Path path_;
  bool writes_every_iteration_;
  const Log& log_;
  AppendFile file_;
  i64 tables_ = 0;  // number of tables written so far
};

}  // namespace mcpp
