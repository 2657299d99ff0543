#include "tensor/host/async_copy.h"

#include <optional>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"
#include "tensor/cuda_device.h"

namespace mcpp {
namespace {

class CopyOnStream final : public AsyncCopy::State {
 public:
  /// Queues the copy after the current work of the compute stream.
  CopyOnStream(CudaDevice& device, cudaStream_t stream, const Tensor& from, const Tensor& to)
      : device_(device), from_(from), to_(to), done_(cudaEventDisableTiming) {
    const CudaEvent ready(cudaEventDisableTiming);
    ready.record(device_.stream());
    ready.block_stream(stream);
    check_cuda(cudaMemcpyAsync(to.raw(), from.raw(), static_cast<std::size_t>(from.bytes()), cudaMemcpyDefault, stream),
               "cudaMemcpyAsync");
    done_.record(stream);
  }

  void wait() override { done_.synchronize(); }
  /// Makes the compute stream wait: the next user of the memory runs there.
  void make_stream_wait() override {
    device_.activate();
    done_.block_stream(device_.stream());
    for (Tensor* t : {&from_, &to_}) {
      if (t->defined() && &t->device() == &device_) *t = Tensor();
    }
  }

 private:
  CudaDevice& device_;
  Tensor from_, to_;
  CudaEvent done_;
};

/// One stream per direction: GPUs have separate copy engines for both.
class CudaCopyEngine final : public AsyncCopyEngine {
 public:
  explicit CudaCopyEngine(CudaDevice& device) : AsyncCopyEngine(device), device_(device) {
    device_.activate();
    for (cudaStream_t* stream : {&to_host_, &to_device_})
      check_cuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaCopyEngine() override {
    cudaSetDevice(device_.ordinal());
    for (const cudaStream_t stream : {to_host_, to_device_}) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
  }

  AsyncCopy to_host(const Tensor& from, const Tensor& to) override { return start(to_host_, from, to); }
  AsyncCopy to_device(const Tensor& from, const Tensor& to) override { return start(to_device_, from, to); }
  bool is_synchronous() const override { return false; }
  std::shared_ptr<void> pin(void* memory, i64 bytes) override {
    device_.activate();
    return pin_host_memory(memory, bytes);
  }

 private:
  AsyncCopy start(cudaStream_t stream, const Tensor& from, const Tensor& to) {
    MCPP_CHECK(from.bytes() == to.bytes(), "cannot copy ", from.bytes(), " bytes to a tensor of ", to.bytes());
    if (from.bytes() == 0) return {};
    device_.activate();
    return AsyncCopy(std::make_unique<CopyOnStream>(device_, stream, from, to));
  }

  CudaDevice& device_;
  cudaStream_t to_host_ = nullptr, to_device_ = nullptr;
};

}  // namespace

template <>
std::unique_ptr<AsyncCopyEngine> make_async_copy_engine_on<DeviceType::Cuda>(Device& device) {
  return std::make_unique<CudaCopyEngine>(static_cast<CudaDevice&>(device));
}

namespace {

class PinnedCopy final : public AsyncReadback {
 public:
  PinnedCopy(CudaDevice& device, i64 count) : device_(device), count_(count) {
    device_.activate();  // events belong to the current device
    done_.emplace(cudaEventDisableTiming);
    check_cuda(cudaMallocHost(&values_, bytes()), "cudaMallocHost");
  }
  ~PinnedCopy() override {
    cudaFreeHost(values_);  // waits for the device
  }

  void start(const Tensor& from) override {
    MCPP_CHECK(from.numel() == count_, "expected ", count_, " values, not a tensor ", from.shape());
    device_.activate();
    check_cuda(cudaMemcpyAsync(values_, from.data<double>(), bytes(), cudaMemcpyDeviceToHost, device_.stream()),
               "cudaMemcpyAsync");
    done_->record(device_.stream());
  }
  std::vector<double> values() override {
    done_->synchronize();
    return {values_, values_ + count_};
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(double); }

  CudaDevice& device_;
  i64 count_;
  std::optional<CudaEvent> done_;
  double* values_ = nullptr;
};

}  // namespace

template <>
std::unique_ptr<AsyncReadback> make_async_readback_on<DeviceType::Cuda>(Device& device, i64 count) {
  return std::make_unique<PinnedCopy>(static_cast<CudaDevice&>(device), count);
}

}  // namespace mcpp
