// Launches of kernels with one defect each, and of their correct forms.
#pragma once
#include <cuda_runtime.h>

namespace mcpp::test {

/// Reverses blocks of 64 values through shared memory.
void launch_reverse(const float* from, float* to, bool has_barrier, cudaStream_t stream);
/// Sums the threads' indices, after threads from `first_absent` on have returned.
void launch_sum_after_return(float* to, unsigned first_absent, cudaStream_t stream);
/// Synchronizes the lanes of a warp with masks that are equal or differ.
void launch_ballot(unsigned* to, bool has_equal_masks, cudaStream_t stream);
/// Writes `count` values with one thread each.
void launch_fill(float* to, int count, float value, cudaStream_t stream);
/// Reads `count` values, and writes their sum.
void launch_sum(const float* from, int count, float* to, cudaStream_t stream);
/// Stores 16 bytes at `to`.
void launch_vector_store(void* to, cudaStream_t stream);
/// Copies shared memory that no thread has written.
void launch_copy_shared(float* to, cudaStream_t stream);
/// Launches a kernel with this much shared memory, after a request for `requested` bytes unless that is 0.
void launch_with_shared(std::size_t bytes, int requested, cudaStream_t stream);
/// Computes rows * columns in int.
void launch_multiply_signed(int rows, int columns, long long* to, cudaStream_t stream);
/// Computes the index of each block times the stride in unsigned.
void launch_multiply_index(int blocks, unsigned stride, long long* to, cudaStream_t stream);
/// Converts the index of a block plus the offset to int.
void launch_narrow_index(unsigned offset, long long* to, cudaStream_t stream);
/// Launches a kernel that only one test uses.
void launch_unloaded(float* to, cudaStream_t stream);
/// Launches without a block.
void launch_empty_grid(float* to, cudaStream_t stream);

}  // namespace mcpp::test
