// One GPU as one rank uses it: memory, the compute stream, and the handles of the libraries.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <set>

#include "tensor/cuda/check.h"
#include "tensor/cuda/staging.h"
#include "tensor/cuda_device.h"
#include "tensor/tensor.h"

namespace mcpp {

/// State of the matrix product library: handle and the algorithms chosen so far (tensor/cuda/gemm/matmul.cpp).
struct CublasLt;
/// State of the attention library: handle and the plans built so far (tensor/cuda/attention/cudnn_attention.cpp).
struct CudnnAttention;

/// All ops on its tensors run on stream(), in order; only what reads results on the host waits. Memory comes from
/// CUDA's stream-ordered pool, below Device's own: a buffer that is released may be handed out again at once, because
/// whoever gets it runs later on the same stream. Communication streams must wait for, and be waited for by, events.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options);
  ~CudaDevice() override;

  /// Makes this GPU the calling thread's current one; every op begins with it.
  void activate() const { check_cuda(cudaSetDevice(options_.ordinal), "cudaSetDevice"); }
  int ordinal() const { return options_.ordinal; }
  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  const cudaDeviceProp& properties() const { return properties_; }
  /// Waits until everything on stream() is done.
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  const CudaOptions& options() const { return options_; }

  Staging& staging() { return staging_; }
  CublasLt& cublas() { return *cublas_; }
  CudnnAttention& cudnn() { return *cudnn_; }

  /// For take_notices(); a sentence that was added before is not added again.
  void add_notice(const std::string& sentence);
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

 private:
  void* system_allocate(i64 bytes) override;
  void system_free(void* data) noexcept override;

  CudaOptions options_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  Staging staging_;
  std::unique_ptr<CublasLt, void (*)(CublasLt*)> cublas_;
  std::unique_ptr<CudnnAttention, void (*)(CudnnAttention*)> cudnn_;
  std::set<std::string> told_;
  std::vector<std::string> notices_;  // of these, what was not handed out
};

/// The device of a tensor that is on a GPU, activated.
inline CudaDevice& cuda(const Tensor& t) {
  auto& device = static_cast<CudaDevice&>(t.device());
  device.activate();
  return device;
}

// Defined beside the ops that use them.
CublasLt* make_cublas(const CudaDevice& device);
void destroy_cublas(CublasLt* state);
CudnnAttention* make_cudnn(const CudaDevice& device);
void destroy_cudnn(CudnnAttention* state);

}  // namespace mcpp
