// Observation and interruption of a step between its forward and backward passes: progress reports and signals.
#pragma once
#include <array>
#include <span>

#include "comm/communicator.h"

namespace mcpp {

/// Stop request of a rank. It is sent with the values that ranks exchange for a step or an evaluation batch, and all
/// ranks receive the maximum of each field.
struct StopRequest {
  int signal = 0;      ///< signal that requested the stop, or 0
  double minutes = 0;  ///< minutes since the start of the process

  static constexpr i64 kCount = 2;
  std::array<double, kCount> values() const { return {static_cast<double>(signal), minutes}; }
  static StopRequest of(std::span<const double, kCount> values) { return {static_cast<int>(values[0]), values[1]}; }
};

/// Observer called between the passes of a training step or an evaluation batch.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Returns the signal that requests this rank to stop, or 0. Once nonzero it remains so.
  virtual int signal() const = 0;
  /// Returns the minutes since this rank's process started.
  virtual double minutes() const = 0;
  /// Reports that `done` of the `all` passes of this rank in the step have finished or, on a GPU, were queued. The step
  /// has `microbatches` microbatches.
  virtual void on_pass_finished(i64 done, i64 all, i64 microbatches) = 0;
};

/// Step execution on one rank. A signal aborts the step before the next microbatch pass.
///
/// A rank that aborts still executes its schedule to the end, with all communication, but computes nothing
/// (MicrobatchContext::abort()). Ranks therefore need not agree on when to abort: the others keep computing until they
/// receive the signal themselves, and no rank waits for a message that is never sent. At the end of the step the ranks
/// exchange whether any rank aborted; if so, the step is discarded on all ranks. Only ranks that communicate within a
/// layer (tensor, context and expert parallel) abort together, by exchanging one value on the host before each pass.
class InterruptibleStep {
 public:
  explicit InterruptibleStep(Communicator& layer) : layer_(layer) {}

  /// Sets the observer; null disables interruption. Must be null on all ranks or on none.
  void set_observer(StepObserver* watch) { observer_ = watch; }
  void begin(i64 passes, i64 microbatches);
  /// Returns false once the step is aborted. Call it before each pass. Collective over the ranks of the layer.
  bool should_continue();
  bool is_aborted() const { return is_aborted_; }
  /// Returns this rank's stop request; empty without an observer.
  StopRequest stop_request() const;

 private:
  Communicator& layer_;
  CpuDevice host_;  // for the exchanged value, so that no GPU is waited for
  StepObserver* observer_ = nullptr;
  i64 passes_ = 0, done_ = 0, microbatches_ = 0;
  int agreed_signal_ = 0;
  bool is_aborted_ = false;
};

}  // namespace mcpp
