// Progress display of long operations on a terminal: bar, rate and remaining time.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "base/stored_ref.h"

namespace mcpp {

/// Quantity whose progress is displayed. Bytes are formatted with binary prefixes, other quantities with their unit.
struct ProgressOptions {
  double total = 0;       ///< 0 if unknown: neither a bar nor the remaining time is shown
  std::string unit = "";  ///< "documents"; empty = bytes
};

/// Progress display of rank 0. On a terminal it overwrites the live line five times per second, starting after half a
/// second. On a terminal that cannot overwrite (TERM=dumb) it prints a plain line every ten seconds. Otherwise it
/// prints nothing. Used by one thread.
class Progress {
 public:
  Progress(StoredRef<Log> log, std::string what, ProgressOptions options);
  ~Progress();  ///< clears the live line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports that `done` of the total, counted from the start, is finished; `suffix` is appended to the line.
  void update(double done, std::string_view suffix = "");

 private:
  double seconds() const;

  const Log& log_;
  std::string what_;
  ProgressOptions options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool is_live_, is_plain_, is_shown_ = false;
  double next_ = 0;  // seconds
};

/// Elapsed-time display for an operation that reports no progress. A thread updates it, starting at construction.
class WaitIndicator {
 public:
  WaitIndicator(StoredRef<Log> log, std::string what);

 private:
  std::jthread ticker_;
};

/// Formats one progress line at most `columns` wide: "verify [=====>    ] 52 %, 1.20 GiB/s, 8.1s left".
std::string progress_text(const std::string& what, const ProgressOptions& options, double done, double seconds,
                          std::string_view more, std::size_t columns);

}  // namespace mcpp
