// GEMMs with cuBLASLt: descriptors and the fastest algorithm are cached for each kind of GEMM.
#pragma once
#include <cublasLt.h>

#include <map>
#include <string>

#include "tensor/cuda/device.h"
#include "tensor/gemm_algo_cache.h"

namespace mcpp {

/// Plan of a kind of GEMM for cuBLASLt, which is column-major: c^T = op(b)^T op(a)^T, so its first operand is b.
struct GemmPlan {
  mutable cublasLtMatmulDescOpaque_t operation{};  // the library takes no pointers to const, but does not modify it
  mutable cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  cublasLtMatmulAlgo_t algorithm{};
  i64 workspace = 0;  ///< bytes
};

/// State of one GPU. If `timed`, the first GEMM of a kind times the best candidates of the library's heuristics on its
/// operands and keeps the fastest. Every candidate sums in a fixed order, but different candidates use different
/// orders. Runs are therefore bitwise identical if they use the same choices, which is always the case without `timed`.
struct CublasLt {
  cublasLtHandle_t handle = nullptr;
  std::string platform;   ///< library version and GPU for which choices are valid
  GemmAlgoCache choices;  ///< found by timing or loaded; looked up before timing
  std::map<GemmKey, GemmPlan> plans;
  bool timed = false;       ///< otherwise the heuristics' first candidate is used
  bool allow_tf32 = false;  ///< allows TF32 for fp32 GEMMs
};

/// Addresses of the operands of a GEMM.
struct Operands {
  const void *a, *b;
  void* c;
  const void *a_scales = nullptr, *b_scales = nullptr;  ///< low precision: scales of a and b, on the GPU
  const float* factors = nullptr;                       ///< nvfp4: factors of the product and of c, on the GPU
  const void* bias = nullptr;                           ///< bias of an epilogue
  void* aux = nullptr;                                  ///< epilogue: input of GELU, in the layout of c
};

/// Computes a GEMM. The first GEMM of a kind may be timed.
void multiply(const GemmKey& key, const Operands& x, CudaDevice& device);

/// Computes the GEMM of one nonempty group of rows; `key` has 0 for the number of rows. All groups use the same
/// algorithm, which never splits a sum.
void multiply_group(const GemmKey& key, i64 rows, const Operands& x, CudaDevice& device);

}  // namespace mcpp
