// Sums over the rows of a matrix in a fixed order: chunks of rows, whose number depends only on the shape, are summed
// into separate vectors, which are then added in order.
#pragma once
#include "tensor/cuda/rows.cuh"

namespace mcpp {

/// Computes out[c] = beta out + the sums of column c over all chunks. 32 threads share a column: each adds every 32nd
/// chunk, and their sums are added in order.
template <class W>
__global__ void add_chunks(const W* sums, i64 chunks, i64 stride, W* out, i64 n, float beta) {
  MCPP_SHARED(W[kWarp][kWarp], shared);
  const i64 column = blockIdx.x * i64{kWarp} + threadIdx.x;
  W sum = 0;
  if (column < n) {
#pragma unroll 8
    for (i64 chunk = threadIdx.y; chunk < chunks; chunk += kWarp) sum += sums[chunk * stride + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= n) return;
  W total = beta == 0 ? W{0} : static_cast<W>(beta) * out[column];
#pragma unroll
  for (int k = 0; k < kWarp; ++k) total += shared[k][threadIdx.x];
  out[column] = total;
}

/// One vector of `n` sums per chunk of rows, initially uninitialized. W is float or double.
template <class W>
class PartialSums {
 public:
  PartialSums(i64 rows, i64 n, i64 min_rows, i64 max_chunks, CudaDevice& device)
      : rows_per_chunk(std::max(min_rows, (rows + max_chunks - 1) / max_chunks)),
        chunks((rows + rows_per_chunk - 1) / rows_per_chunk),
        device_(device),
        sums_(Tensor::empty({chunks, n}, DTypeOf<W>::value, device, MemoryClass::Workspace)) {}

  const i64 rows_per_chunk;
  const i64 chunks;

  W* data() const { return sums_.template data<W>(); }

  /// Computes out = beta out + the sums of all chunks, from column `first` on.
  void add_to(Tensor& out, i64 first, float beta) const {
    const i64 n = out.numel();
    if (n == 0) return;
    launch(add_chunks<W>, static_cast<unsigned>((n + kWarp - 1) / kWarp), dim3(kWarp, kWarp), 0, device_.stream(),
           data() + first, chunks, sums_.dim(1), out.data<W>(), n, beta);
  }

 private:
  CudaDevice& device_;
  Tensor sums_;
};

}  // namespace mcpp
