// A point on a stream that others wait for, or that time is measured from.
#pragma once
#include "tensor/cuda/check.h"

namespace mcpp {

class CudaEvent {
 public:
  CudaEvent() { check_cuda(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  /// Waits until this event has happened.
  float milliseconds_since(const CudaEvent& start) const {
    check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float time = 0;
    check_cuda(cudaEventElapsedTime(&time, start.event_, event_), "cudaEventElapsedTime");
    return time;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace mcpp
