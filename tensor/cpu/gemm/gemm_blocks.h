// Partition of c[M, N] into blocks, each computed by one thread.
#pragma once
#include <omp.h>

#include <algorithm>
#include <exception>

#include "base/integer_math.h"
#include "tensor/cpu/gemm/gemm.h"

namespace mcpp::kernel {

struct Block {
  i64 row = 0, column = 0, rows = 0, columns = 0;
};

/// Returns the block size (rows, columns) for a GEMM of this size, tuned for sgemm: large blocks reuse the packed
/// operands more often, but there must be enough blocks to balance several threads. Independent of the number of
/// threads.
inline Block block_of(GemmSize size, bool transpose_a) {
  Block block{0, 0, transpose_a ? 384 : 512, transpose_a ? 768 : 384};
  const auto count = [&] { return ceil_div(size.m, block.rows) * ceil_div(size.n, block.columns); };
  while (count() < 4 && (block.rows > 128 || block.columns > 128)) {
    i64& longer = block.rows >= block.columns ? block.rows : block.columns;
    longer /= 2;
  }
  return block;
}

/// Limits OpenMP regions of the calling thread to one thread for its lifetime, so that oneDNN runs single-threaded.
class SingleThreadScope {
 public:
  SingleThreadScope() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleThreadScope() { omp_set_num_threads(before_); }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int before_;
};

/// Calls f(Block) for every block, on the device's threads. Rethrows the first exception on the calling thread.
template <class F>
void for_each_block(const CpuDevice& device, GemmSize size, Block step, F&& f) {
  const i64 down = ceil_div(size.m, step.rows), across = ceil_div(size.n, step.columns);
  const bool is_column_order = size.n > size.m;  // reuses the block of the larger operand several times in a row
  std::exception_ptr error;
#pragma omp parallel for num_threads(device.threads()) schedule(dynamic, 1) if (down * across > 1)
  for (i64 i = 0; i < down * across; ++i) {
    const i64 row = (is_column_order ? i % down : i / across) * step.rows;
    const i64 column = (is_column_order ? i / down : i % across) * step.columns;
    try {
      f(Block{row, column, std::min(step.rows, size.m - row), std::min(step.columns, size.n - column)});
    } catch (...) {
#pragma omp critical(mcpp_gemm_error)
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace mcpp::kernel
