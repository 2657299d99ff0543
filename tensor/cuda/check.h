// Conversion of CUDA library errors to exceptions.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include "base/check.h"

namespace mcpp {

/// Throws with CUDA's text unless `code` is success: OutOfMemory if device or pinned memory is exhausted, otherwise
/// Internal. The error may stem from an earlier kernel.
inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  fail(code == cudaErrorMemoryAllocation ? ExitCode::OutOfMemory : ExitCode::Internal, call, ": ",
       cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

inline void check_cublas(cublasStatus_t code, const char* call) {
  if (code == CUBLAS_STATUS_SUCCESS) return;
  fail(ExitCode::Internal, call, ": ", cublasLtGetStatusString(code));
}

}  // namespace mcpp
