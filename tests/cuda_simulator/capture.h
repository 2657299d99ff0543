// Stream capture: operations of capturing streams are recorded instead of queued (graph.cpp).
#pragma once
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {

/// Records the operation if the stream captures. Returns false if it must be queued.
bool capture_operation(cudaStream_t stream, const Operation& operation);
/// Records an event on a stream that captures. Returns false if the stream does not capture.
bool capture_event_record(cudaStream_t stream, const std::shared_ptr<EventState>& event);
/// Handles a wait if the stream captures or the event was recorded in a capture: the stream then joins the capture.
/// `result` is the result of the call. Returns false if neither is the case.
bool capture_event_wait(cudaStream_t stream, const std::shared_ptr<EventState>& event, cudaError_t& result);

bool is_capturing(cudaStream_t stream);
/// Makes the capture of the stream fail. Returns `error`.
cudaError_t invalidate_capture(cudaStream_t stream, cudaError_t error);
/// Returns the error of a call that waits for the stream or for all streams (null), or that CUDA considers unsafe
/// during a capture, such as an allocation; cudaSuccess if no capture forbids it. Makes the captures that forbid it
/// fail.
cudaError_t check_not_capturing(cudaStream_t stream = nullptr);
/// Returns the error of a call that waits for an event, or queries it.
cudaError_t check_event_not_captured(const EventState& event);
/// Returns the error of a use of the default stream.
cudaError_t check_default_stream();

/// Queues an operation without letting the policy run any, so that several operations can be part of one call of the
/// host.
void push(cudaStream_t stream, Operation operation);
cudaStream_t new_internal_stream(int device);
/// Charges the host for a call, and lets the policy run operations.
void charge_call();
void run_by_policy();

}  // namespace mcpp::cuda_simulator
