// Trace of several training steps on all ranks.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/logging/trace_file.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Prefix of the file names of all traces; trace_prefix() returns that of a trace by its first iteration:
/// "trace_iter_0000031". The names sort by iteration.
inline constexpr std::string_view kTracePrefix = "trace_iter_";
std::string trace_prefix(i64 first_iteration);

/// Records one trace: begin(), end(), write(). Every method is collective.
class StepTrace {
 public:
  /// If `records`, stores the ranges of this rank; its totals are always stored.
  StepTrace(Session& session, bool records) : session_(session), should_record_(records) {}

  /// Returns the time that this rank has spent so far.
  using TimingsFn = std::function<RankTimings()>;
  /// Starts recording. No work may be queued on the device.
  void begin(const TimingsFn& get_timings);
  /// Ends recording. `modules` is the result of module_memory_usage(); the activations kept by the rank's passes are
  /// added.
  void end(const TimingsFn& get_timings, BytesByModule modules);
  /// Writes the trace file. `facts` is a JSON object stored in it. Returns, on rank 0, why the file could not be
  /// written, or "".
  std::string write(const Path& path, const std::string& facts);

 private:
  Session& session_;
  bool should_record_;
  std::unique_ptr<DeviceClock> clock_;
  RankTrace local_trace_;
  RankTimings begin_;
};

/// Trace requested by logging.profile_step_start and profile_step_end.
class TraceWindow {
 public:
  /// Throws BadInput if a rank to be profiled does not exist or if `folder` cannot be created.
  TraceWindow(StoredRef<LoggingConfig> config, Path folder, Session& session, StoredRef<Log> log);

  /// Returns true if the iteration, counted from 1, is the first or last one of the window that this run computes.
  bool is_first_iteration(i64 iteration) const;
  bool ends_with(i64 iteration) const { return trace_ && !is_over_ && iteration == config_.profile_step_end; }
  bool is_open() const { return trace_ && !is_over_; }

  void begin(i64 iteration, const StepTrace::TimingsFn& get_timings);
  /// Ends the window after the iteration, or early if no other iteration follows.
  void end(i64 iteration, const StepTrace::TimingsFn& get_timings, BytesByModule modules);
  /// Writes the finished trace, if any. Logs a warning if the folder is not writable.
  void write();

 private:
  const LoggingConfig& config_;
  Path folder_;
  Session& session_;
  const Log& log_;
  std::optional<StepTrace> trace_;
  bool is_over_ = false, was_begun_ = false;
  i64 first_ = 0, last_ = 0;
};

}  // namespace mcpp
