// GEMMs of bf16 tiles with Intel AMX. A kernel holds a TileSession on the thread, packs its operands into panels,
// and calls multiply_block for each 32 x 32 block of the result.
//
// Layout of a panel: 32 rows of A (or columns of B) by depth, padded with zeros to steps of 32. Step s holds two tiles
// of 16 x 32 elements, 1 KiB each: tile t of an A panel is rows 16 t .. 16 t + 15, contiguous in k; tile t of a B panel
// is [k / 2][column][k % 2] of columns 16 t .. 16 t + 15, as required by the tile GEMM.
#pragma once
#include "base/integer_math.h"
#include "tensor/dtype.h"

namespace mcpp::kernel {

/// Returns true if this CPU has AMX for bf16, the system permits it, and the instruction set limit allows it.
bool amx_available();

inline constexpr i64 kPanelWidth = 32;
inline constexpr i64 kPanelStep = 32;    ///< along k
inline constexpr i64 kStepSize = 1024;   ///< elements of one step of a panel
inline constexpr i64 kBlockSize = 1024;  ///< fp32 elements of a 32 x 32 block

/// Returns the number of elements of a panel of this depth.
constexpr i64 panel_size(i64 depth) {
  return ceil_div(depth, kPanelStep) * kStepSize;
}

/// Configures the AMX tiles of the calling thread while the object exists. Calls into oneDNN invalidate the
/// configuration.
class TileSession {
 public:
  TileSession();
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

enum class PanelOf : u8 { A, B };

/// Packs one panel into `out` (64-byte aligned). Only the first `count` of the 32 rows (columns) exist. Element (i, k)
/// is at x[i * ld + k] if `k_contiguous`, otherwise at x[k * ld + i].
void pack_panel(PanelOf side, const BFloat16* x, i64 ld, bool k_contiguous, i64 count, i64 depth, BFloat16* out);

/// Tiles of 32 rows of A: packed, or in place in a matrix whose rows are contiguous in k.
struct ATiles {
  const BFloat16* data = nullptr;
  i64 row = 32;           ///< distance between rows of a tile, in elements
  i64 second_tile = 512;  ///< distance to the tile of rows 16 .. 31, in elements
  i64 step = 1024;        ///< distance to the next 32 elements along k, in elements

  static ATiles packed(const BFloat16* panel) { return {panel}; }
  static ATiles in_place(const BFloat16* x, i64 ld) { return {x, ld, 16 * ld, kPanelStep}; }
};

/// Computes out[32, 32] = in + A B over `steps` steps. `in` may be `out`, or null for zero. Both are dense and 64-byte
/// aligned.
void multiply_block(ATiles a, const BFloat16* b, i64 steps, const float* in, float* out);

}  // namespace mcpp::kernel
