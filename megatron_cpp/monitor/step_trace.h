// A trace of some steps of a training, on all ranks.
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

/// How the names of all traces begin, and of one whose first iteration is this: "trace_iter_0000031". In the order of
/// iterations.
inline constexpr std::string_view kTracePrefix = "trace_iter_";
std::string trace_prefix(i64 first_iteration);

/// One trace: begin(), end(), write(). All ranks call the same.
class StepTrace {
 public:
  /// `records`: whether this rank's ranges are kept; its figures are in any case. The session outlives this.
  StepTrace(Session& session, bool records) : session_(session), records_(records) {}

  /// When `spent` was spent.
  using Spent = std::function<RankSeconds()>;
  /// Nothing is under way on the device.
  void begin(const Spent& spent);
  /// `modules`: kept_by_modules(), to which is added what the rank's passes kept of activations.
  void end(const Spent& spent, BytesByModule modules);
  /// `facts`: a JSON object that is kept in the file. Why it could not be written, on rank 0, or "".
  std::string write(const Path& path, const std::string& facts);

 private:
  Session& session_;
  bool records_;
  std::unique_ptr<DeviceClock> clock_;
  RankTrace mine_;
  RankSeconds begin_;
};

/// The trace that logging.profile_step_start and profile_step_end ask for.
class TraceWindow {
 public:
  /// BadInput when a rank is named that is none, or there can be no folder `folder`. All outlive this.
  TraceWindow(KeptRef<LoggingConfig> config, Path folder, Session& session, KeptRef<Log> log);

  /// Whether the iteration, counted from 1, is the first one of the window that this run computes, or the last one.
  bool begins_with(i64 iteration) const;
  bool ends_with(i64 iteration) const { return trace_ && !is_over_ && iteration == config_.profile_step_end; }
  bool is_open() const { return trace_ && !is_over_; }

  void begin(i64 iteration, const StepTrace::Spent& spent);
  /// After the iteration, or because no other follows.
  void end(i64 iteration, const StepTrace::Spent& spent, BytesByModule modules);
  /// Writes the trace that is over, if there is one; a folder that cannot be written costs it with a warning.
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
