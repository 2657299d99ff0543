// Rank-aware logging to standard error and standard output. main creates one Log and passes it down.
#pragma once
#include <atomic>
#include <string_view>

namespace mcpp {

/// Rank-aware log. Thread-safe.
class Log {
 public:
  /// If `allows_live_line` is false, standard output is not treated as a terminal even if it is one.
  explicit Log(int rank = 0, bool allows_live_line = true) : rank_(rank), allows_live_line_(allows_live_line) {}

  /// Writes a plain line to standard output, from rank 0 only.
  void info(std::string_view line) const;
  /// Writes "warning: ..." to standard error, from rank 0 only; for conditions that all ranks detect.
  void warn(std::string_view line) const;
  /// Writes a warning that names the rank, from any rank; for conditions that other ranks may not detect.
  void warn_from_any_rank(std::string_view line) const;
  /// Writes a line without blocking, for threads such as the one that handles signals: to standard output on rank 0,
  /// otherwise to standard error with the rank. Drops the line if the reader has stopped reading.
  void write_unbuffered(std::string_view line) const;
  /// Writes the live line of a terminal, which the next line overwrites. No-op if standard output is not a terminal.
  void progress(std::string_view line) const;
  /// Returns true if standard output is a terminal, so that progress() is visible.
  bool is_live() const;

 private:
  int rank_;
  bool allows_live_line_;
  mutable std::atomic<bool> progress_shown_ = false;
};

}  // namespace mcpp
