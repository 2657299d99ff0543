// Traces of several steps on all ranks, in one file in Chrome's Trace Event Format, for ui.perfetto.dev and
// chrome://tracing.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "comm/communicator.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/setup/initialize.h"
#include "tensor/profiler.h"

namespace mcpp {

// Synchronization of clocks across hosts.

/// Offset between the steady clocks of this rank and rank 0, in seconds.
struct ClockOffset {
  double at = 0;           ///< time of the comparison, on this rank's clock
  double seconds = 0;      ///< offset to add to this rank's clock; 0 if both clocks may be identical
  double uncertainty = 0;  ///< half of the fastest message round trip
  double reference = 0;    ///< reference time on the clock of rank 0; identical on all ranks
};

/// Measures the offset by message round trips between rank 0 and each other rank. Collective over `world`, which must
/// support tensors in host memory.
ClockOffset measure_clock_offset(Communicator& world);

/// Converts a time on this rank's clock to rank 0's, given a comparison before and one after it. Clock drift is
/// interpolated linearly, or ignored if it is within the uncertainty.
double to_rank0_clock(double moment, const ClockOffset& before, const ClockOffset& after);

/// Bytes by module name and memory class.
using BytesByModule = std::map<std::string, std::map<std::string, double>>;

/// Trace of one rank.
struct RankTrace {
  std::string name;  ///< rank name shown by viewers
  Profiler::Trace trace;
  ClockOffset before, after;             ///< clock comparisons before and after the trace
  std::map<std::string, double> totals;  ///< totals of the rank over the traced period
  BytesByModule modules = {};            ///< memory used by each module of the rank's part of the model
};

/// Returns the ranges as elements of the "traceEvents" array, one per line, comma-separated. Rank r is process r. Times
/// are in microseconds since `before.reference`.
std::string trace_events(const RankTrace& trace, int rank);

/// Writes the traces of all ranks from rank 0. Collective over `world`, which must support tensors in host memory.
/// "otherData" contains the figures by rank and the members of `info`, a JSON object. Returns, on rank 0, why the file
/// could not be written, or "".
std::string write_trace_file(const Path& path, const RankTrace& local, const std::string& info, Communicator& world);

/// Prefix of all trace file names. trace_prefix() appends the first iteration, as in "trace_iter_0000031", so that
/// names sort by iteration.
inline constexpr std::string_view kTracePrefix = "trace_iter_";
std::string trace_prefix(i64 first_iteration);

/// Records one trace: begin(), end(), write(). Every method is collective.
class StepTrace {
 public:
  /// If `records`, stores the time ranges of this rank. The totals of the rank are always stored.
  StepTrace(Session& session, bool records) : session_(session), should_record_(records) {}

  /// Starts recording steps of `state`. No work may be queued on the device.
  void begin(const TrainingState& state);
  /// Ends recording; call it between two steps. `zero_stage` is the ZeRO stage of the run.
  void end(const TrainingState& state, i64 zero_stage);
  /// Writes the trace file. `info` is a JSON object stored in it. Returns, on rank 0, why the file could not be
  /// written, or "".
  std::string write(const Path& path, const std::string& info);

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

  /// Return true if `iteration`, counted from 1, is the first or the last iteration of the window that this run
  /// computes.
  bool is_first_iteration(i64 iteration) const;
  bool ends_with(i64 iteration) const { return trace_ && !is_over_ && iteration == config_.profile_step_end; }
  bool is_open() const { return trace_ && !is_over_; }

  void begin(i64 iteration, const TrainingState& state);
  /// Ends the window after `iteration`: its last iteration, or the last iteration of the run.
  void end(i64 iteration, const TrainingState& state, i64 zero_stage);
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
