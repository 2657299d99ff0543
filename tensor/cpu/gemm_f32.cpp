// fp32 through oneDNN's sgemm, one call per block of c. The library's own threading splits k for some shapes, so that
// its sums depend on the number of threads; blocks of a fixed size, each computed by one thread, do not, and are as
// fast.
#include <dnnl.h>

#include <vector>

#include "tensor/cpu/gemm.h"
#include "tensor/cpu/gemm_blocks.h"

namespace mcpp::kernel {
namespace {

// One block on the calling thread.
void sgemm(GemmSize s, Operand<float> a, Operand<float> b, float beta, float* c, i64 ldc) {
  const OneThread alone;
  const dnnl_status_t status = dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', s.m, s.n, s.k, 1.0f,
                                          a.data, a.ld, b.data, b.ld, beta, c, ldc);
  MCPP_CHECK(status == dnnl_success, "dnnl_sgemm returned ", static_cast<int>(status));
}

void widen(Operand<BFloat16> x, i64 rows, i64 columns, float* y) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 i = 0; i < columns; ++i) y[r * columns + i] = static_cast<float>(x.data[r * x.ld + i]);
  }
}

// A block of op(x) in fp32, stored dense in the same orientation.
Operand<float> widened(Operand<BFloat16> x, i64 rows, i64 columns, std::vector<float>& storage) {
  storage.resize(static_cast<std::size_t>(rows * columns));
  if (x.transposed) std::swap(rows, columns);
  widen(x, rows, columns, storage.data());
  return {storage.data(), columns, x.transposed};
}

// Elements of k that are widened at a time, so that the fp32 copies stay in the second-level cache.
constexpr i64 kWidenedDepth = 512;

}  // namespace

void gemm_f32(const CpuDevice& device, GemmSize size, Operand<float> a, Operand<float> b, float beta, float* c) {
  for_each_block(device, size, block_of(size, a.transposed), [&](Block at) {
    const GemmSize block{at.rows, at.columns, size.k};
    sgemm(block, {a.at(at.row, 0), a.ld, a.transposed}, {b.at(0, at.column), b.ld, b.transposed}, beta,
          c + at.row * size.n + at.column, size.n);
  });
}

template <class C>
void gemm_widened(const CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c) {
  for_each_block(device, size, block_of(size, a.transposed), [&](Block at) {
    std::vector<float> wide_a, wide_b, sum;
    C* out = c + at.row * size.n + at.column;
    float* target;
    i64 ld = size.n;
    if constexpr (std::is_same_v<C, float>) {
      target = out;
    } else {
      sum.resize(static_cast<std::size_t>(at.rows * at.columns));
      if (beta != 0) widen({out, size.n, false}, at.rows, at.columns, sum.data());
      target = sum.data();
      ld = at.columns;
    }
    for (i64 k = 0; k < size.k; k += kWidenedDepth) {
      const i64 depth = std::min(kWidenedDepth, size.k - k);
      sgemm({at.rows, at.columns, depth}, widened({a.at(at.row, k), a.ld, a.transposed}, at.rows, depth, wide_a),
            widened({b.at(k, at.column), b.ld, b.transposed}, depth, at.columns, wide_b), k == 0 ? beta : 1.0f, target,
            ld);
    }
    if constexpr (std::is_same_v<C, BFloat16>) {
      for (i64 r = 0; r < at.rows; ++r) {
        for (i64 i = 0; i < at.columns; ++i) out[r * size.n + i] = BFloat16(sum[static_cast<std::size_t>(r * ld + i)]);
      }
    }
  });
}

template void gemm_widened(const CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, float*);
template void gemm_widened(const CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, BFloat16*);

}  // namespace mcpp::kernel
