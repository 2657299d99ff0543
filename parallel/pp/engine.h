// Runs a lowered schedule on one rank. The engine knows neither the schedule's kind nor the model: it hands activations
// and gradients from stage to stage, over the network or inside the rank.
#pragma once
#include <span>

#include "comm/communicator.h"
#include "parallel/pp/schedule.h"
#include "tensor/host/device_waits.h"

namespace mcpp {

/// One chunk of the model, as the engine drives it.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// `x`: the output of the stage before, undefined in the first. Returns this stage's output, undefined in the last.
  virtual Tensor forward(int microbatch, const Tensor& x) = 0;
  /// `dy`: the gradient of the output, undefined in the last stage. Returns that of the input, undefined in the first.
  /// Both gradients; `is_last`: no other microbatch's weight gradients follow in this step.
  virtual Tensor backward(int microbatch, const Tensor& dy, bool is_last) = 0;
  /// The gradient of the input alone; backward_weight() for the same microbatch follows later.
  virtual Tensor backward_input(int microbatch, const Tensor& dy) = 0;
  virtual void backward_weight(int microbatch, bool is_last) = 0;
  /// backward() or backward_input() of this microbatch comes after the computation that begins now.
  virtual void expect_backward(int /*microbatch*/) {}
  /// All weight gradients of the step have been computed here: their reduction may begin.
  virtual void reduce_gradients() = 0;
  /// Memory for an activation, or its gradient, that comes from another rank.
  virtual Tensor empty_activation() = 0;
};

/// Where a rank's time in a schedule went, in seconds.
struct PipelineTimes {
  double total = 0;
  double waiting = 0;  ///< for messages that had not come: the bubble, and transfers that nothing hid
};

struct EngineOptions {
  Profiler* profiler = nullptr;  ///< told of each wait
  /// Of the device that computes, where it works behind the host: then it is what waits, and what it waited for may
  /// come with a later call's times.
  DeviceWaits* waits = nullptr;
  /// With waits: receives are not posted ahead, and the host waits for each. For the first run of a schedule, in turn
  /// at first: a device that has to load a kernel may finish first what it has, and a message that is awaited there for
  /// ever if it is the answer to what that kernel computes.
  bool one_at_a_time = false;
};

/// Runs rank `forward_channel.rank()` of `lowered`. The channels are the ranks of the pipeline in order, twice:
/// activations and gradients do not get into each other's order. `chunks[c]` is the stage that chunk c of this rank
/// holds. Receives are posted ahead of the computation before them. Called by all ranks of the pipeline.
PipelineTimes run_schedule(const Schedule& lowered, Communicator& forward_channel, Communicator& backward_channel,
                           std::span<PipelineStage* const> chunks, const EngineOptions& options = {});

}  // namespace mcpp
