// Functions that the parts of the simulated CUDA runtime share.
#pragma once
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {

/// Returns the calling thread's current device.
int current_device();
/// Stores an error for cudaGetLastError(), and returns it.
cudaError_t remember_error(cudaError_t error);

/// Returns true if a queued operation uses memory of the host within the range.
bool is_host_range_queued(const void* begin, std::size_t bytes);
/// Runs everything queued on the stream, or on all streams of a device.
void drain_stream(Lock& lock, cudaStream_t stream, const char* call);
void drain_device(Lock& lock, int device, const char* call);

}  // namespace mcpp::cuda_simulator
