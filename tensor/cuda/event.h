// CUDA event: a point on a stream, for synchronization or timing.
#pragma once
#include "tensor/cuda/check.h"

namespace mcpp {

class CudaEvent {
 public:
  /// Creates the event. With cudaEventDisableTiming it is cheaper, but has no time.
  explicit CudaEvent(unsigned flags = cudaEventDefault) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Makes `stream` wait for the work recorded by the event.
  void block_stream(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// Returns true if the recorded work is done, without blocking. Callable from any thread.
  bool is_done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // clears the recorded error, which the next launch check would report
      return false;
    }
    check_cuda(state, "cudaEventQuery");
    return true;
  }
  /// Waits until the recorded work is done.
  void synchronize() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Waits for this event and returns the time since `start`.
  float milliseconds_since(const CudaEvent& start) const {
    synchronize();
    float time = 0;
    check_cuda(cudaEventElapsedTime(&time, start.event_, event_), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace mcpp
