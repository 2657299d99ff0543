// What a terminal shows while a tokenizer is trained.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/strings.h"
#include "data/prepare/input_files.h"

namespace mcpp {

/// The live line of a terminal while the library trains, which does not say how far it is.
class TrainingProgress {
 public:
  explicit TrainingProgress(const Log& log) : log_(log) {}

  void reading(u64 done_bytes, u64 total_bytes) {
    if (!log_.is_live() || seconds() < next_) return;
    next_ = seconds() + 1;
    log_.progress(str("tokenizer: reading, ", describe_progress(done_bytes, total_bytes, seconds())));
  }
  /// From here on a thread shows that time passes.
  void training() {
    if (!log_.is_live() || ticker_.joinable()) return;
    ticker_ = std::jthread([this](const std::stop_token& stop) {
      std::mutex mutex;
      std::unique_lock lock(mutex);
      std::condition_variable_any stopped;
      do {
        log_.progress(str("tokenizer: all is read, training since ", human_seconds(seconds())));
      } while (!stopped.wait_for(lock, stop, std::chrono::seconds(1), [&] { return stop.stop_requested(); }));
    });
  }

 private:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  const Log& log_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double next_ = 0;
  std::jthread ticker_;  // last: it uses all of the above
};

}  // namespace mcpp
