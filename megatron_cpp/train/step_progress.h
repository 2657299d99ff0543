// Progress display of a step, or of a batch of an evaluation, while it runs.
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

/// Decides when to report the progress of a long step. Has no clock of its own.
class LongStep {
 public:
  static constexpr double kLiveAfter = 1, kLivePause = 0.2;  ///< seconds; for a terminal
  static constexpr double kLogPause = 120;                   ///< seconds; for the log

  struct Reports {
    std::optional<std::string> live, log;
  };
  /// Returns the reports that are due `seconds` after the step began, with the fraction `share` of it done: "microbatch
  /// 12 of 64, 2m05s left". The log text also states the elapsed time.
  Reports reports_at(double seconds, double share, i64 microbatches);

 private:
  double last_live_ = kLiveAfter - kLivePause, last_log_ = 0;
};

/// Observer that logs the progress of this rank's steps and forwards signals to them.
class StepProgress final : public StepObserver {
 public:
  /// If `is_live`, also shows progress on the live line of a terminal.
  StepProgress(StoredRef<SignalWatch> signals, StoredRef<Log> log, bool is_live)
      : signals_(signals), log_(log), is_live_(is_live && log_.is_live()) {}

  /// Begins a step; `name` is for example "iteration 3/100".
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
