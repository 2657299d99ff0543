#include "tensor/cuda/device.h"

#include <algorithm>
#include <cstring>

namespace mcpp {

Staging::~Staging() {
  cudaFreeHost(memory_);
}

void Staging::write(const void* from, void* to, i64 bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (!memory_) {
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, static_cast<std::size_t>(kCapacity)), "cudaMallocHost");
    memory_ = static_cast<std::byte*>(memory);
  }
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  for (i64 done = 0; done < bytes; done += kChunk)
    write_chunk(source + done, target + done, std::min(kChunk, bytes - done), stream);
}

void Staging::write_chunk(const void* from, void* to, i64 bytes, cudaStream_t stream) {
  std::optional<i64> offset;
  while (!(offset = ring_.take(bytes))) {
    copied_.front().synchronize();
    copied_.pop_front();
    ring_.release_oldest();
  }
  std::byte* staged = memory_ + *offset;
  std::memcpy(staged, from, static_cast<std::size_t>(bytes));
  const CudaEvent& copied = copied_.emplace_back(cudaEventDisableTiming);
  check_cuda(cudaMemcpyAsync(to, staged, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream),
             "cudaMemcpyAsync");
  copied.record(stream);
}

namespace {

/// Oldest architecture with bf16 tensor cores, which the kernels require.
constexpr int kMinComputeCapabilityMajor = 8;

cudaDeviceProp properties_of(int ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  check_input(error == cudaSuccess && count > 0, "device.device: no GPU can be used (", cudaGetErrorString(error),
              "); use \"cpu\", or check nvidia-smi");
  check_input(ordinal >= 0 && ordinal < count, "device.device: this process sees ", count, " GPUs, none with index ",
              ordinal);
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  check_input(properties.major >= kMinComputeCapabilityMajor, "device.device: the GPU ", properties.name,
              " has compute capability ", properties.major, ".", properties.minor, "; at least ",
              kMinComputeCapabilityMajor, ".0 is needed");
  return properties;
}

}  // namespace

CudaDevice::CudaDevice(const CudaOptions& options)
    : Device(DeviceType::Cuda),
      options_(options),
      properties_(properties_of(options.ordinal)),
      cublas_(nullptr, destroy_cublas),
      cudnn_(nullptr, destroy_cudnn) {
  activate();
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  cublas_.reset(make_cublas(*this));
  cudnn_.reset(make_cudnn(*this));
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(options_.ordinal);
  cudaStreamSynchronize(stream_);
  free_pool();
  cudnn_.reset();
  cublas_.reset();
  cudaStreamDestroy(stream_);
}

void* CudaDevice::system_allocate(i64 bytes) {
  activate();
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  cudaError_t error = cudaMallocAsync(&data, size, stream_);
  if (error == cudaErrorMemoryAllocation) {  // memory freed on the stream may not have been returned yet
    cudaGetLastError();
    synchronize();
    error = cudaMallocAsync(&data, size, stream_);
  }
  if (error == cudaSuccess) return data;
  cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) check_cuda(error, "cudaMallocAsync");
  return nullptr;  // Device then throws out-of-memory with its table
}

void CudaDevice::system_free(void* data) noexcept {
  cudaSetDevice(options_.ordinal);
  cudaFreeAsync(data, stream_);
}

void CudaDevice::add_notice(const std::string& notice) {
  if (seen_notices_.insert(notice).second) notices_.push_back(notice);
}

std::vector<std::string> take_notices(Device& device) {
  return static_cast<CudaDevice&>(device).take_notices();
}

std::unique_ptr<Device> make_cuda_device(const CudaOptions& options) {
  return std::make_unique<CudaDevice>(options);
}

std::string cuda_device_id(Device& device) {
  std::string id;
  for (const char byte : static_cast<CudaDevice&>(device).properties().uuid.bytes)
    for (const int shift : {4, 0}) id += "0123456789abcdef"[(static_cast<unsigned char>(byte) >> shift) & 15];
  return id;
}

std::shared_ptr<void> pin_host_memory(void* memory, i64 bytes) {
  check_cuda(cudaHostRegister(memory, static_cast<std::size_t>(bytes), cudaHostRegisterPortable), "cudaHostRegister");
  return {memory, [](void* pinned) { cudaHostUnregister(pinned); }};
}

void synchronize(Device& device) {
  static_cast<CudaDevice&>(device).synchronize();
}

std::string cuda_version() {
  int version = 0;
  check_cuda(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return str(version / 1000, ".", version % 1000 / 10);
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_pci_bus_id(int ordinal) {
  constexpr int kMaxLength = 32;  // "00000000:3B:00.0" and its terminator
  std::string id(kMaxLength, '\0');
  if (cudaDeviceGetPCIBusId(id.data(), kMaxLength, ordinal) != cudaSuccess) return "";
  return id.c_str();
}

}  // namespace mcpp
