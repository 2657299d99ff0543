// A point on a stream that others wait for, or that time is measured from.
#pragma once
#include "tensor/cuda/check.h"

namespace mcpp {

class CudaEvent {
 public:
  /// cudaEventDisableTiming makes one that only marks a place cheaper.
  explicit CudaEvent(unsigned flags = cudaEventDefault) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// `stream` goes on when what was recorded is done.
  void hold(cudaStream_t stream) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent"); }
  /// Does not wait. For any thread.
  bool happened() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // it is noted as an error, which the next launch would find
      return false;
    }
    check_cuda(state, "cudaEventQuery");
    return true;
  }
  /// Waits until what was recorded is done.
  void synchronize() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Waits until this event has happened.
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
