// Operands and memory of ChunkScan (chunk_scan.h).
#pragma once
#include "tensor/ops/scan/gated_scan.h"

#ifdef __CUDACC__
#define MCPP_SCAN_FUNCTION __device__
#define MCPP_SCAN_HOST_FUNCTION __host__ __device__
#else
#define MCPP_SCAN_FUNCTION
#define MCPP_SCAN_HOST_FUNCTION
#endif

namespace mcpp {

/// Operands of a scan over elements of type T with arithmetic in R. Members for the backward pass are null in forward.
template <class T, class R>
struct ScanOperands {
  ScanShape shape;
  i64 seq = 0, batch = 0;
  const T *x = nullptr, *p = nullptr;
  const T *a_log = nullptr, *dt_bias = nullptr, *skip = nullptr;
  const i32* starts = nullptr;
  i64 first = 0;
  R* state = nullptr;
  T* y = nullptr;
  const T* dy = nullptr;
  T *dx = nullptr, *dp = nullptr;
  R *d_a_log = nullptr, *d_dt_bias = nullptr, *d_skip = nullptr;
  R* states = nullptr;
};

/// Operands of the gradients of the products of one block with itself: rows of queries, keys and decays [kScanPadding,
/// channels], and the gradients of QK and KK with row stride `ld`, which are 0 above the diagonal.
template <class R>
struct BlockProducts {
  const R *q, *k, *decay, *d_qk, *d_kk;
  i64 ld;
};

/// Bump allocator for the matrices of a scan. Without memory, it only counts elements.
template <class R>
struct ScanArena {
  R* memory = nullptr;
  i64 used = 0;

  MCPP_SCAN_HOST_FUNCTION R* take(i64 count) {
    R* at = memory ? memory + used : nullptr;
    used += scan_padded(count);
    return at;
  }
};

}  // namespace mcpp
