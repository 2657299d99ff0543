// Matrix products through cuBLASLt: descriptors and the fastest algorithm are kept for each kind of product.
#pragma once
#include <cublasLt.h>

#include <map>
#include <string>

#include "tensor/cuda/device.h"
#include "tensor/gemm_choices.h"

namespace mcpp {

/// A kind of product as cuBLASLt has it, which is column-major: c^T = op(b)^T op(a)^T, so its first operand is b.
struct GemmPlan {
  mutable cublasLtMatmulDescOpaque_t operation{};  // the library takes no pointers to const, and changes nothing
  mutable cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  cublasLtMatmulAlgo_t algorithm{};
  i64 workspace = 0;  ///< bytes
};

/// The state of one GPU. With `timed`, at the first product of a kind the candidates that the library's heuristics put
/// first are timed on the operands at hand; the best runs from then on. All candidates add up in a fixed order, but not
/// all in the same one: runs have the same bits when they have the same choices, which those of `timed` off have.
struct CublasLt {
  cublasLtHandle_t handle = nullptr;
  std::string platform;  ///< the library's version and the GPU: what choices are valid for
  GemmChoices choices;   ///< found here or given; looked up before timing
  std::map<GemmKey, GemmPlan> plans;
  bool timed = false;       ///< else the heuristics' first candidate is taken
  bool allow_tf32 = false;  ///< for products of fp32
};

/// One product: where its numbers are.
struct Operands {
  const void *a, *b;
  void* c;
  const float *a_scale = nullptr, *b_scale = nullptr;  ///< in fp8, by what a and b are multiplied; on the GPU
  const void* bias = nullptr;                          ///< of an epilogue
  void* aux = nullptr;                                 ///< of an epilogue: what GELU gets, as c lies
};

/// The product of a kind that is timed, if any is, the first time.
void multiply(const GemmKey& key, const Operands& x, CudaDevice& device);

/// The product of one group of rows, which are more than none; `key` has 0 for their number. The algorithm is the same
/// for all groups. It never splits a sum.
void multiply_group(const GemmKey& key, i64 rows, const Operands& x, CudaDevice& device);

}  // namespace mcpp
