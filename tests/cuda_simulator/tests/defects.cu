#include "tensor/cuda/launch_kernel.cuh"
#include "tests/cuda_simulator/tests/defects.h"

namespace mcpp::test {
namespace {

constexpr int kThreads = 64;

__global__ void reverse(const float* from, float* to, bool has_barrier) {
  MCPP_SHARED(float[kThreads], values);
  values[threadIdx.x] = from[threadIdx.x];
  if (has_barrier) __syncthreads();
  to[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

__global__ void sum_after_return(float* to, unsigned first_absent) {
  MCPP_SHARED(float[kThreads], values);
  if (threadIdx.x >= first_absent) return;
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (unsigned i = 0; i < first_absent; ++i) sum += values[i];
  *to = sum;
}

__global__ void ballot(unsigned* to, bool has_equal_masks) {
  const unsigned mask = has_equal_masks || threadIdx.x % 2 == 0 ? ~0u : 0xFFFFu | 1u << threadIdx.x;
  const unsigned votes = __ballot_sync(mask, threadIdx.x < 8);
  if (threadIdx.x == 0) *to = votes;
}

__global__ void fill(float* to, int count, float value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = value;
}

__global__ void write_one(float* to) {
  *to = 1;
}
__global__ void sum(const float* from, int count, float* to) {
  float total = 0;
  for (int i = 0; i < count; ++i) total += from[i];
  *to = total;
}

__global__ void store(void* to) {
  store_vector(to, uint4{1, 2, 3, 4});
}

__global__ void copy_shared(float* to) {
  MCPP_SHARED(float, value);
  *to = value;
}

__global__ void write_dynamic_shared(std::size_t bytes) {
  if (bytes > 0) dynamic_shared<char>()[bytes - 1] = 1;
}

__global__ void multiply_signed(int rows, int columns, long long* to) {
  *to = rows * columns;
}

__global__ void multiply_index(unsigned stride, long long* to) {
  *to = blockIdx.x * stride;
}

__global__ void narrow_index(unsigned offset, long long* to) {
  *to = static_cast<int>(blockIdx.x + offset);
}

}  // namespace

void launch_reverse(const float* from, float* to, bool has_barrier, cudaStream_t stream) {
  launch(reverse, 1, kThreads, 0, stream, from, to, has_barrier);
}
void launch_sum_after_return(float* to, unsigned first_absent, cudaStream_t stream) {
  launch(sum_after_return, 1, kThreads, 0, stream, to, first_absent);
}
void launch_ballot(unsigned* to, bool has_equal_masks, cudaStream_t stream) {
  launch(ballot, 1, 32, 0, stream, to, has_equal_masks);
}
void launch_fill(float* to, int count, float value, cudaStream_t stream) {
  launch(fill, (count + kThreads - 1) / kThreads, kThreads, 0, stream, to, count, value);
}
void launch_sum(const float* from, int count, float* to, cudaStream_t stream) {
  launch(sum, 1, 1, 0, stream, from, count, to);
}
void launch_vector_store(void* to, cudaStream_t stream) {
  launch(store, 1, 1, 0, stream, to);
}
void launch_copy_shared(float* to, cudaStream_t stream) {
  launch(copy_shared, 1, 1, 0, stream, to);
}
void launch_with_shared(std::size_t bytes, int requested, cudaStream_t stream) {
  if (requested > 0)
    check_cuda(cudaFuncSetAttribute(write_dynamic_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, requested),
               "cudaFuncSetAttribute");
  launch(write_dynamic_shared, 1, 1, bytes, stream, bytes);
}
void launch_multiply_signed(int rows, int columns, long long* to, cudaStream_t stream) {
  launch(multiply_signed, 1, 1, 0, stream, rows, columns, to);
}
void launch_multiply_index(int blocks, unsigned stride, long long* to, cudaStream_t stream) {
  launch(multiply_index, blocks, 1, 0, stream, stride, to);
}
void launch_narrow_index(unsigned offset, long long* to, cudaStream_t stream) {
  launch(narrow_index, 1, 1, 0, stream, offset, to);
}
void launch_unloaded(float* to, cudaStream_t stream) {
  launch(write_one, 1, 1, 0, stream, to);
}
void launch_empty_grid(float* to, cudaStream_t stream) {
  launch(fill, 0, kThreads, 0, stream, to, 0, 0.0f);
}

}  // namespace mcpp::test
