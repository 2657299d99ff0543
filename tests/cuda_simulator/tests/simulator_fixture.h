// Fixture of the simulator's own tests.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda_simulator/simulator.h"

namespace mcpp::test {

inline constexpr int kCount = 64;
inline constexpr std::size_t kBytes = kCount * sizeof(float);

/// Two streams, device memory and pinned memory. Reports are collected instead of ending the program.
class SimulatorTest : public testing::Test {
 protected:
  SimulatorTest() : saved_(cuda_simulator::settings()) {
    cuda_simulator::settings() = {.policy = cuda_simulator::Policy::Late, .patience = 2};
    cuda_simulator::set_report_handler([this](const std::string& text) { reports_.push_back(text); });
    for (cudaStream_t* stream : {&first_, &second_}) cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    for (float** data : {&a_, &b_}) {
      void* memory = nullptr;
      cudaMallocAsync(&memory, kBytes, first_);
      *data = static_cast<float*>(memory);
      cudaMemsetAsync(memory, 0, kBytes, first_);
    }
    void* pinned = nullptr;
    cudaMallocHost(&pinned, kBytes);
    pinned_ = static_cast<float*>(pinned);
    std::fill_n(pinned_, kCount, 1.0f);
    cudaStreamSynchronize(first_);
  }
  ~SimulatorTest() override {
    cudaFreeAsync(a_, first_);
    cudaFreeAsync(b_, first_);
    for (const cudaStream_t stream : {first_, second_}) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    cudaFreeHost(pinned_);
    cuda_simulator::set_report_handler(nullptr);
    cuda_simulator::settings() = saved_;
  }
  /// Makes a call fail, counting from now on.
  static void inject(const std::string& call, int number) {
    cuda_simulator::settings().fault_call = call;
    cuda_simulator::settings().fault_number = number;
    cuda_simulator::reset_faults();
    cudaGetLastError();  // clears errors of earlier faults
  }

  /// Makes `to` wait for everything queued on `from`.
  static void order(cudaStream_t from, cudaStream_t to) {
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, from);
    cudaStreamWaitEvent(to, event, 0);
    cudaEventDestroy(event);
  }
  std::vector<std::string> finish() {
    cudaDeviceSynchronize();
    return std::exchange(reports_, {});
  }
  float value(const float* at) {
    float result = 0;
    cudaMemcpyAsync(&result, at, sizeof(result), cudaMemcpyDeviceToHost, first_);
    cudaStreamSynchronize(first_);
    return result;
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  float *a_ = nullptr, *b_ = nullptr, *pinned_ = nullptr;
  std::vector<std::string> reports_;

 private:
  const cuda_simulator::Settings saved_;
};

}  // namespace mcpp::test
