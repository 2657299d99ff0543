// GPU of one rank: memory, the compute stream, and library handles.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "base/check.h"
#include "tensor/cuda/check.h"
#include "tensor/cuda/event.h"
#include "tensor/cuda_device.h"
#include "tensor/host/staging_ring.h"
#include "tensor/tensor.h"

namespace mcpp {

// Asynchronous copies from the host to the GPU.

/// Ring of pinned host memory for writes to the GPU, since the driver copies asynchronously only from pinned memory.
/// The host blocks only while the ring is full. Thread-safe.
class Staging {
 public:
  Staging() = default;
  ~Staging();  ///< waits for the streams of all writes
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Copies `bytes` at `from`, which may be modified immediately, to `to` on the GPU, in the order of `stream`.
  void write(const void* from, void* to, i64 bytes, cudaStream_t stream);

 private:
  void write_chunk(const void* from, void* to, i64 bytes, cudaStream_t stream);

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // allocated by the first write
  StagingRing ring_{kCapacity};
  std::deque<CudaEvent> copied_;  // events of the ring's chunks, oldest first

  /// Covers the tokens of a step, which take a few MiB. For larger writes, such as weights, the host's copy overlaps
  /// with the GPU's.
  static constexpr i64 kCapacity = i64{32} << 20;
  static constexpr i64 kChunk = i64{4} << 20;
};

/// State of the GEMM library: handle and chosen algorithms (tensor/cuda/gemm/matmul.cpp).
struct CublasLt;
/// State of the attention library: handle and compiled plans (tensor/cuda/attention/cudnn_attention.cpp).
struct CudnnAttention;

/// CUDA device. All ops on its tensors run on stream(), in order; only reading results on the host blocks. Memory comes
/// from CUDA's stream-ordered pool, below Device's own pool: a released buffer may be reused immediately, because the
/// next op that uses it runs later on the same stream. Communication streams must synchronize with stream() by events
/// in both directions.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options);
  ~CudaDevice() override;

  /// Makes this GPU current on the calling thread. Every op calls it first.
  void activate() const { check_cuda(cudaSetDevice(options_.ordinal), "cudaSetDevice"); }
  int ordinal() const { return options_.ordinal; }
  /// Returns the stream of all ops. While a graph is recorded, only the recording thread may use it.
  cudaStream_t stream() const {
    MCPP_CHECK(!is_recording() || recorder_ == std::this_thread::get_id(),
               "a thread queues work on a GPU while another thread records a graph, which would contain it");
    return stream_;
  }
  int multiprocessors() const { return properties_.multiProcessorCount; }
  const cudaDeviceProp& properties() const { return properties_; }
  /// Waits until all work on stream() is done.
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  const CudaOptions& options() const { return options_; }

  /// Returns true while ops on stream() are recorded in a graph (tensor/device_graph.h).
  bool is_recording() const { return recorder_.load() != std::thread::id(); }
  /// Begins a recording by the calling thread, or ends it.
  void set_recording(bool is_recording) { recorder_ = is_recording ? std::this_thread::get_id() : std::thread::id(); }

  Staging& staging() { return staging_; }
  CublasLt& cublas() { return *cublas_; }
  CudnnAttention& cudnn() { return *cudnn_; }

  /// Adds a notice for take_notices(), unless an identical notice was added before.
  void add_notice(const std::string& notice);
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

 private:
  void* system_allocate(i64 bytes) override;
  void system_free(void* data) noexcept override;

  CudaOptions options_;
  cudaDeviceProp properties_{};
  cudaStream_t stream_ = nullptr;
  std::atomic<std::thread::id> recorder_{};  // thread that records a graph; none by default
  Staging staging_;
  std::unique_ptr<CublasLt, void (*)(CublasLt*)> cublas_;
  std::unique_ptr<CudnnAttention, void (*)(CudnnAttention*)> cudnn_;
  std::set<std::string> seen_notices_;
  std::vector<std::string> notices_;  // notices not yet returned
};

/// Returns the device of a GPU tensor, activated.
inline CudaDevice& cuda(const Tensor& t) {
  auto& device = static_cast<CudaDevice&>(t.device());
  device.activate();
  return device;
}

// Defined with the ops that use them.
CublasLt* make_cublas(const CudaDevice& device);
void destroy_cublas(CublasLt* state);
CudnnAttention* make_cudnn(const CudaDevice& device);
void destroy_cudnn(CudnnAttention* state);

}  // namespace mcpp
