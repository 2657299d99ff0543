// Functions of the simulator that kernels call.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace mcpp::cuda_simulator {

/// Configuration of a kernel launch and the source location of the call.
struct LaunchConfig {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
  std::source_location site;
};

/// Checks the configuration and queues the kernel; `thread_body` runs the code of one thread.
void enqueue_kernel(const void* kernel, const LaunchConfig& config, std::size_t argument_bytes,
                    std::function<void()> thread_body);

/// Storage of one shared variable, reassigned by every block.
struct SharedSlot {
  std::uint64_t block = 0;
  void* data = nullptr;
};
void* shared_variable_memory(SharedSlot& slot, std::size_t bytes, std::size_t alignment);
void* dynamic_shared_memory();

/// Reports an address that is not a multiple of the access size.
void check_alignment(const void* address, std::size_t bytes, const char* access);

/// Checks an atomic access to global memory against other operations.
void record_atomic(const void* address, std::size_t bytes);

enum class WarpOp { Shuffle, Ballot, MatchAny, Sync };
/// Waits until all lanes of `mask` have called it, and returns the result for the calling lane.
std::uint64_t meet_warp(WarpOp op, unsigned mask, std::uint64_t value, int source_lane);
void meet_block();
int lane_index();

}  // namespace mcpp::cuda_simulator
