// fp32 GEMMs with oneDNN's sgemm, one call per block of c. The library's own threading splits k for some
// shapes, so that its sums depend on the number of threads. Blocks of a fixed size, each computed by one thread, avoid
// that at equal speed.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <utility>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/gemm/gemm_blocks.h"
#include "tensor/cpu/simd/bf16_path.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/tensor.h"

namespace mcpp::kernel {
namespace {

// Computes one block on the calling thread.
void sgemm(GemmSize s, Operand<float> a, Operand<float> b, float beta, float* c, i64 ldc) {
  const SingleThreadScope single_thread;
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', s.m, s.n, s.k, 1.0f,
                                          a.data, a.ld, b.data, b.ld, beta, c, ldc);
  MCPP_CHECK(status == dnnl_success, "dnnl_sgemm returned ", static_cast<int>(status));
}

// Scratch memory of fp32 values for each thread, so that no block waits for fresh memory.
class Scratch {
 public:
  Scratch(CpuDevice& device, i64 per_thread)
      : space_(Tensor::empty({device.threads(), per_thread}, DType::F32, device, MemoryClass::Workspace)) {}
  float* thread_buffer() const { return space_.data<float>() + omp_get_thread_num() * space_.dim(1); }

 private:
  Tensor space_;
};

template <class T>
void widen(const T* x, i64 rows, i64 columns, i64 ld, float* y) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 i = 0; i < columns; ++i) y[r * columns + i] = static_cast<float>(x[r * ld + i]);
  }
}

// Converts rows x columns of op(x) to fp32 in `y`, dense and in the same orientation.
template <class T>
Operand<float> convert_to_f32(Operand<T> x, i64 rows, i64 columns, float* y) {
  if (x.transposed) std::swap(rows, columns);
  widen(x.data, rows, columns, x.ld, y);
  return {y, columns, x.transposed};
}

// Elements of k converted at a time, so that the fp32 copies stay in the L2 cache.
constexpr i64 kWidenedDepth = 512;

// Returns true if rows of a transposed A, which sgemm reads together, are a multiple of 2 KiB apart and thus share L1
// cache lines, which costs a third of the speed. A copy with a different stride costs less.
bool has_cache_conflicts(Operand<float> a) {
  return a.transposed && a.ld % 512 == 0;
}

constexpr i64 kPadding = 16;

Operand<float> copy_with_padding(Block at, i64 k, Operand<float> a, float* copy) {
  const i64 ld = at.rows + kPadding;
  for (i64 i = 0; i < k; ++i) std::copy_n(a.at(at.row, i), at.rows, copy + i * ld);
  return {copy, ld, true};
}

}  // namespace

bool can_use_sgemm() {
  return is_isa_available(dnnl::cpu_isa::avx512_core);
}

void gemm_f32(CpuDevice& device, GemmSize size, Operand<float> a, Operand<float> b, float beta, float* c) {
  const Block step = block_of(size, a.transposed);
  const Scratch scratch(device, has_cache_conflicts(a) ? size.k * (step.rows + kPadding) : 0);
  for_each_block(device, size, step, [&](Block at) {
    const Operand<float> part = has_cache_conflicts(a) ? copy_with_padding(at, size.k, a, scratch.thread_buffer())
                                                       : Operand<float>{a.at(at.row, 0), a.ld, a.transposed};
    sgemm({at.rows, at.columns, size.k}, part, {b.at(0, at.column), b.ld, b.transposed}, beta,
          c + at.row * size.n + at.column, size.n);
  });
}

template <class T, class C>
void gemm_widened(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c) {
  const Block step = block_of(size, a.transposed);
  const i64 a_count = step.rows * kWidenedDepth, b_count = step.columns * kWidenedDepth;
  const Scratch scratch(device, a_count + b_count + step.rows * step.columns);
  for_each_block(device, size, step, [&](Block at) {
    float* wide_a = scratch.thread_buffer();
    float* wide_b = wide_a + a_count;
    float* sum = wide_b + b_count;
    C* out = c + at.row * size.n + at.column;
    i64 ld = at.columns;
    if constexpr (std::is_same_v<C, float>) {
      sum = out;
      ld = size.n;
    } else if (beta != 0) {
      widen(out, at.rows, at.columns, size.n, sum);
    }
    for (i64 k = 0; k < size.k; k += kWidenedDepth) {
      const i64 depth = std::min(kWidenedDepth, size.k - k);
      sgemm({at.rows, at.columns, depth},
            convert_to_f32<T>({a.at(at.row, k), a.ld, a.transposed}, at.rows, depth, wide_a),
            convert_to_f32<T>({b.at(k, at.column), b.ld, b.transposed}, depth, at.columns, wide_b),
            k == 0 ? beta : 1.0f, sum, ld);
    }
    if constexpr (std::is_same_v<C, T>) {
      for (i64 r = 0; r < at.rows; ++r) {
        for (i64 i = 0; i < at.columns; ++i) out[r * size.n + i] = T(sum[r * ld + i]);
      }
    }
  });
}

template void gemm_widened(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, float*);
template void gemm_widened(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, BFloat16*);
template void gemm_widened(CpuDevice&, GemmSize, Operand<Float16>, Operand<Float16>, float, float*);
template void gemm_widened(CpuDevice&, GemmSize, Operand<Float16>, Operand<Float16>, float, Float16*);

void gemm_f64(const CpuDevice& device, GemmSize size, Operand<double> a, Operand<double> b, float beta, double* c) {
  parallel_for(device, size.m, 16, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      for (i64 j = 0; j < size.n; ++j) {
        double sum = beta == 0 ? 0 : static_cast<double>(beta) * c[i * size.n + j];
        for (i64 k = 0; k < size.k; ++k) sum += *a.at(i, k) * *b.at(k, j);
        c[i * size.n + j] = sum;
      }
    }
  });
}

}  // namespace mcpp::kernel
