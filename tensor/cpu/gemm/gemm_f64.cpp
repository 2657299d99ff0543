#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"

namespace mcpp::kernel {

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
