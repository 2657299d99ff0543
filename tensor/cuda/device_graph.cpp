#include "tensor/device_graph.h"

#include <cuda_runtime.h>

#include "tensor/cuda/device.h"

namespace mcpp {
namespace {

/// Scope in which the operations on the compute stream are captured. Calls of other threads, such as the watchdog's
/// queries of events, do not affect the capture.
class Capture {
 public:
  explicit Capture(CudaDevice& device) : device_(device) {
    check_cuda(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    device_.set_recording(true);
  }
  ~Capture() {
    if (device_.is_recording()) discard();
    if (graph_) cudaGraphDestroy(graph_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t finish() {
    device_.set_recording(false);
    check_cuda(cudaStreamEndCapture(device_.stream(), &graph_), "cudaStreamEndCapture");
    return graph_;
  }

 private:
  /// Ends the capture after an error. Ignores the errors of the capture, which are less informative.
  void discard() {
    device_.set_recording(false);
    cudaStreamEndCapture(device_.stream(), &graph_);
    cudaGetLastError();
  }

  CudaDevice& device_;
  cudaGraph_t graph_ = nullptr;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(CudaDevice& device, cudaGraph_t graph) : device_(device) {
    std::size_t count = 0;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
    size_ = static_cast<i64>(count);
    check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
  }
  ~CudaGraph() override {
    cudaSetDevice(device_.ordinal());
    cudaGraphExecDestroy(executable_);
  }

  void launch() override {
    device_.activate();
    check_cuda(cudaGraphLaunch(executable_, device_.stream()), "cudaGraphLaunch");
  }
  i64 size() const override { return size_; }

 private:
  CudaDevice& device_;
  cudaGraphExec_t executable_ = nullptr;
  i64 size_ = 0;
};

}  // namespace

template <>
std::unique_ptr<DeviceGraph> record_graph_on<DeviceType::Cuda>(Device& device, const std::function<void()>& work) {
  auto& gpu = static_cast<CudaDevice&>(device);
  gpu.activate();
  Capture capture(gpu);
  work();
  return std::make_unique<CudaGraph>(gpu, capture.finish());
}

}  // namespace mcpp
