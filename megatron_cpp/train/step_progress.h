// What is told of a step, or a batch of an evaluation, while it goes on.
#pragma once
#include <chrono>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/machine.h"
#include "base/stored_ref.h"
#include "megatron_cpp/step/interruptible_step.h"
#include "megatron_cpp/train/signals.h"

namespace mcpp {

/// When something is said about a step that has come so far. Without a clock of its own.
class LongStep {
 public:
  static constexpr double kLiveAfter = 1, kLivePause = 0.2;  ///< seconds; for a terminal
  static constexpr double kLogPause = 120;                   ///< seconds; for the log, where nothing moves

  struct Said {
    std::optional<std::string> live, log;
  };
  /// `seconds` since the step began, in which `share` of it was done. "microbatch 12 of 64, 2m05s left"; the log also
  /// has the time that is over.
  Said at(double seconds, double share, i64 microbatches);

 private:
  double last_live_ = kLiveAfter - kLivePause, last_log_ = 0;
};

/// Shows the steps of this rank in its log, and tells them about signals.
class StepProgress final : public StepObserver {
 public:
  /// `is_live`: also on the live line of a terminal. Signals and log outlive this.
  StepProgress(StoredRef<SignalWatch> signals, StoredRef<Log> log, bool is_live)
      : signals_(signals), log_(log), is_live_(is_live && log_.is_live()) {}

  /// A step begins, "iteration 3/100".
  void begin(std::string name);
  int signal() const override { return signals_.received(); }
  double minutes() const override { return process_seconds() / 60; }
  void on_pass_finished(i64 done, i64 all, i64 microbatches) override;

 private:
  const SignalWatch& signals_;
  const Log& log_;
  bool is_live_;
  std::string name_;
  std::chrono::steady_clock::time_point start_;
  LongStep step_;
};

}  // namespace mcpp
