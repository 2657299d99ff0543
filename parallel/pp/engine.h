// Executes a lowered schedule on one rank. The engine is independent of the schedule kind and of the model: it passes
// activations and gradients between stages, over the network or within the rank.
#pragma once
#include <span>

#include "comm/communicator.h"
#include "parallel/pp/pass_interleaver.h"
#include "parallel/pp/schedule.h"
#include "tensor/host/device_wait_timer.h"

namespace mcpp {

/// Interface of a model chunk for the engine.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// Called before each pass of a microbatch. If two passes run together, it is called for both before either starts.
  virtual void begin_pass(int /*microbatch*/) {}
  /// `x` is the previous stage's output, undefined in the first stage. Returns this stage's output, undefined in the
  /// last.
  virtual Tensor forward(int microbatch, const Tensor& x) = 0;
  /// Computes both gradients. `dy` is the gradient of the output, undefined in the last stage. Returns the gradient of
  /// the input, undefined in the first. `is_last` is true if no weight gradients of other microbatches follow in this
  /// step.
  virtual Tensor backward(int microbatch, const Tensor& dy, bool is_last) = 0;
  /// Computes the gradient of the input only; backward_weight() for the same microbatch follows later.
  virtual Tensor backward_input(int microbatch, const Tensor& dy) = 0;
  virtual void backward_weight(int microbatch, bool is_last) = 0;
  /// Prefetches data for backward() or backward_input() of this microbatch, which follows the computation that starts
  /// now.
  virtual void prefetch_backward(int /*microbatch*/) {}
  /// Starts the reduction of weight gradients, all of which have been computed for this step.
  virtual void reduce_gradients() = 0;
  /// Allocates a receive buffer for the previous stage's output.
  virtual Tensor empty_input() = 0;
  /// Allocates a receive buffer for the gradient of this stage's output.
  virtual Tensor empty_output_gradient() = 0;
};

/// Time breakdown of a rank's schedule, in seconds.
struct PipelineTimes {
  double total = 0;
  double waiting = 0;  ///< wait time for messages: the pipeline bubble and transfers that were not overlapped
};

struct EngineOptions {
  Profiler* profiler = nullptr;  ///< records each wait
  /// Wait timer of a device that runs asynchronously to the host. The device then waits instead of the host, and the
  /// wait time may be included in the times of a later call.
  DeviceWaitTimer* wait_timer = nullptr;
  /// Disables posting receives ahead; requires `wait_timer`, and makes the host wait for each receive. Used for the
  /// first run of a schedule with serialized first microbatches, because loading a kernel may wait for all queued
  /// device work: it would deadlock with a pending receive of data that depends on the result of that kernel.
  bool serializes_receives = false;
  /// Runs pairs of passes (is_pass_pair()). Required if the schedule has any; stages call its yield().
  PassInterleaver* interleaver = nullptr;
};

/// Runs rank `forward_channel.rank()` of `lowered`. Both channels contain the ranks of the pipeline in order; separate
/// channels keep activations and gradients independent. `chunks[c]` is the stage of chunk c of this rank. Receives are
/// posted ahead of the preceding computation. Collective over the pipeline.
PipelineTimes run_schedule(const Schedule& lowered, Communicator& forward_channel, Communicator& backward_channel,
                           std::span<PipelineStage* const> chunks, const EngineOptions& options = {});

}  // namespace mcpp
