// CUDA runtime functions for devices, memory and copies.
#include "tests/cuda_simulator/runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/cuda_simulator/capture.h"
#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/kernel.h"
#include "tests/cuda_simulator/memory.h"

namespace mcpp::cuda_simulator {
namespace {

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

/// Bytes in use per GPU, and the GPU of each allocation.
struct Usage {
  std::map<int, std::size_t> used;
  std::map<const void*, int> devices;
};
Usage& usage() {
  static auto* const only = new Usage;
  return *only;
}

/// Returns a hash that changes with any byte of the range.
std::uint64_t hash_bytes(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  for (; bytes > 0; --bytes, ++at) hash = (hash ^ *at) * 0x100000001B3u;
  return hash;
}

bool fits_kind(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return false;
  }
}

bool overlaps(const void* a, const void* b, std::size_t bytes) {
  const auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  return x < y + bytes && y < x + bytes;
}

/// Maximum size of copies that are made even if only time is simulated, because the host depends on their values.
constexpr std::size_t kSmallCopy = 1 << 20;

/// Minimum size of uploads that the fault "upload" counts. Tokens and scalars are smaller.
constexpr std::size_t kLeastUpload = 1 << 10;

/// Queues a copy from or to pinned host memory. Detects host accesses while the copy is queued by the contents of the
/// memory: a source must not change, and a destination must keep the pattern that is stored here.
void enqueue_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream, const void* host) {
  const bool is_checked = settings().computes && host && !is_capturing(stream) && !is_host_range_queued(host, bytes);
  if (is_checked && host == to) std::memset(to, 0xFF, bytes);
  const std::uint64_t expected = is_checked ? hash_bytes(host, bytes) : 0;
  const char* name = !host        ? "cudaMemcpyAsync"
                     : host == to ? "cudaMemcpyAsync to the host"
                                  : "cudaMemcpyAsync from the host";
  const auto run = [=] {
    if (is_checked && hash_bytes(host, bytes) != expected)
      report("pinned memory was modified by the host while %s of %zu bytes was in flight", name, bytes);
    record_access(from, bytes, false);
    record_access(to, bytes, true);
    if (cost_model()) spend(cost_model()->copy(static_cast<double>(bytes), host));
    if (settings().computes || bytes <= kSmallCopy) std::memcpy(to, from, bytes);
    if (host == from && bytes >= kLeastUpload && should_fail("upload")) flip_bit(to, bytes);
  };
  enqueue(stream, {.name = name, .run = run, .host = {host, host ? bytes : 0}});
}

}  // namespace

int current_device() {
  return device_of_thread;
}
cudaError_t remember_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

extern "C" {

cudaError_t cudaGetLastError(void) {
  if (sticky_error() != cudaSuccess) return sticky_error();
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError(void) {
  return last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "an error of the simulated GPU";
  }
}
const char* cudaGetErrorName(cudaError_t) {
  return "simulated";
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings().gpus;
  return *count > 0 ? cudaSuccess : remember_error(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= settings().gpus) return remember_error(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  const int capability = settings().compute_capability;
  std::snprintf(properties->name, sizeof(properties->name), "Simulated %s", capability >= 100 ? "B200" : "H100");
  for (int i = 0; i < 16; ++i) properties->uuid.bytes[i] = static_cast<char>(16 * i + device);
  properties->major = capability / 10;
  properties->minor = capability % 10;
  properties->totalGlobalMem = settings().memory;
  properties->multiProcessorCount = settings().multiprocessors;
  properties->sharedMemPerBlock = kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->maxThreadsPerBlock = kMaxThreads;
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", 0x3B + device);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock(simulator_mutex());
  *total = settings().memory;
  *free = settings().memory - std::min(settings().memory, usage().used[current_device()]);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  const Lock lock(simulator_mutex());
  if (is_capturing(stream)) {
    report("cudaMallocAsync on a stream that captures: nodes that allocate memory are not simulated");
    return remember_error(cudaErrorNotSupported);
  }
  if (sticky_error() != cudaSuccess) return remember_error(sticky_error());
  std::size_t& used = usage().used[current_device()];
  *data = !should_fail("cudaMallocAsync") && bytes <= settings().memory - std::min(settings().memory, used)
              ? allocate_device_memory(bytes)
              : nullptr;
  if (!*data) return remember_error(cudaErrorMemoryAllocation);
  used += bytes;
  usage().devices[*data] = current_device();
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  if (!data) return cudaSuccess;
  const Lock lock(simulator_mutex());
  if (is_capturing(stream)) {
    report("cudaFreeAsync on a stream that captures: nodes that free memory are not simulated");
    return remember_error(cudaErrorNotSupported);
  }
  enqueue(stream, {.name = "cudaFreeAsync",
                   .run =
                       [data] {
                         const std::size_t bytes = is_device_memory(data) ? free_memory(data) : 0;
                         if (bytes == 0) return report("cudaFreeAsync of memory that is not allocated");
                         usage().used[usage().devices[data]] -= bytes;
                         usage().devices.erase(data);
                       },
                   .may_outlive_stream = true});
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  const Lock lock(simulator_mutex());
  if (const cudaError_t error = check_not_capturing(); error != cudaSuccess) return error;
  *data = should_fail("cudaMallocHost") ? nullptr : allocate_pinned_memory(bytes);
  return *data ? cudaSuccess : remember_error(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  return (cudaMallocHost)(data, bytes);
}
cudaError_t cudaFreeHost(void* data) {
  Lock lock(simulator_mutex());
  if (!data) return cudaSuccess;
  if (const cudaError_t error = check_not_capturing(); error != cudaSuccess) return error;
  if (is_host_range_queued(data, 1)) drain_device(lock, current_device(), "cudaFreeHost");
  if (is_device_memory(data) || free_memory(data) == 0) {
    report("cudaFreeHost of memory that is not pinned");
    return remember_error(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned) {
  const Lock lock(simulator_mutex());
  if (const cudaError_t error = check_not_capturing(); error != cudaSuccess) return error;
  return register_pinned_memory(data, bytes) ? cudaSuccess : remember_error(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* data) {
  const Lock lock(simulator_mutex());
  if (const cudaError_t error = check_not_capturing(); error != cudaSuccess) return error;
  const std::size_t bytes = unregister_pinned_memory(data);
  if (bytes == 0) return remember_error(cudaErrorHostMemoryNotRegistered);
  if (is_host_range_queued(data, bytes)) report("cudaHostUnregister of memory that a queued copy uses");
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  Lock lock(simulator_mutex());
  if (bytes == 0 || to == from) return cudaSuccess;
  if (sticky_error() != cudaSuccess) return remember_error(sticky_error());
  if (should_fail("cudaMemcpyAsync")) return remember_error(cudaErrorUnknown);
  const bool to_device = is_device_memory(to), from_device = is_device_memory(from);
  if (!fits_kind(kind, to_device, from_device)) {
    report("cudaMemcpyAsync: kind %d from %s to %s memory", static_cast<int>(kind), from_device ? "device" : "host",
           to_device ? "device" : "host");
    return remember_error(cudaErrorInvalidValue);
  }
  if (overlaps(to, from, bytes)) report("cudaMemcpyAsync of %zu bytes between overlapping ranges", bytes);
  const void* host = !to_device ? to : !from_device ? from : nullptr;
  const bool is_pageable = host && !is_pinned_memory(host, bytes);
  if (is_pageable && is_capturing(stream)) return invalidate_capture(stream, cudaErrorStreamCaptureUnsupported);
  enqueue_copy(to, from, bytes, stream, host);
  if (is_pageable) drain_stream(lock, stream, "cudaMemcpyAsync of pageable memory");
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (!is_device_memory(to)) {
    report("cudaMemsetAsync of memory of the host");
    return remember_error(cudaErrorInvalidValue);
  }
  enqueue(stream, {.name = "cudaMemsetAsync", .run = [=] {
                     record_access(to, bytes, true);
                     if (cost_model()) spend(cost_model()->kernel(static_cast<double>(bytes)));
                     if (settings().computes || bytes <= kSmallCopy) std::memset(to, value, bytes);
                   }});
  return cudaSuccess;
}

}  // extern "C"
