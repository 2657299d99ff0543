// Rank-aware lines on standard error and standard output. One Log is made in main and handed down.
#pragma once
#include <atomic>
#include <string_view>

namespace mcpp {

/// Any thread may write lines.
class Log {
 public:
  /// `may_be_live`: whether a standard output that looks like a terminal is one.
  explicit Log(int rank = 0, bool may_be_live = true) : rank_(rank), may_be_live_(may_be_live) {}

  /// A plain line on standard output, from rank 0 only.
  void info(std::string_view line) const;
  /// "warning: ..." on standard error, from rank 0 only: what all ranks know.
  void warn(std::string_view line) const;
  /// The same from any rank, which it names: what other ranks may not know.
  void warn_from_any_rank(std::string_view line) const;
  /// From a thread that nothing may keep waiting, such as one that takes signals: on standard output from rank 0, else
  /// on standard error with the rank; not at all where the reader has stopped reading.
  void urgent(std::string_view line) const;
  /// The live line of a terminal, overwritten by the next; does nothing when standard output is not a terminal.
  void progress(std::string_view line) const;
  /// Whether standard output is a terminal, so that progress() shows.
  bool is_live() const;

 private:
  int rank_;
  bool may_be_live_;
  mutable std::atomic<bool> progress_shown_ = false;
};

}  // namespace mcpp
