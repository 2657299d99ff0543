// The matrix unit (Intel AMX) of recent Xeon processors: products of small bf16 matrices with fp32 sums. Everything
// here may only be called where available() is true; on other processors and architectures it is not.
#pragma once
#include "base/types.h"
#include "tensor/dtype.h"

namespace mcpp::kernel::amx {

/// The processor has AMX with bf16, AVX-512 with bf16, and the system lets this process use them.
bool available();

/// Configures the calling thread's tile registers while it lives. Other libraries change the configuration, too, so
/// it must not be kept across calls to them.
class TileState {
 public:
  TileState();
  ~TileState();
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;
};

/// Element (i, j) of A and C is at [i * ld + j]. B holds pairs of rows interleaved: element (k, j) is at
/// [k / 2 * ldb + 2 * j + k % 2].
struct Operands {
  const BFloat16* a;
  i64 lda;
  const BFloat16* b;
  i64 ldb;
  float* c;
  i64 ldc;
};
/// C[m, n] = A B, or C += A B; m, n and k are multiples of 32. Needs a TileState on this thread.
void multiply(const Operands& x, i64 m, i64 n, i64 k, bool accumulate);

/// A 64 x 64 tile rounded to bf16, as left operand (rows) or as right operand (row pairs interleaved).
void round_rows(const float* tile, BFloat16* dst);
void round_row_pairs(const float* tile, BFloat16* dst);

}  // namespace mcpp::kernel::amx
