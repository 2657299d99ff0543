#include "tensor/host/async_readback.h"

#include <optional>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

namespace mcpp {
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
    MCPP_CHECK(from.numel() == count_, "a copy of ", count_, " numbers, not ", from.shape());
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
