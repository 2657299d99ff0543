// Host memory for transfers between a device and the host or a disk.
#pragma once
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

/// Returns the CPU device in whose memory the host processes data of `device`: `device` itself (not owned) if it is a
/// CPU device, otherwise a new one with `threads` threads.
std::shared_ptr<CpuDevice> host_device_for(Device& device, int threads = 1);

/// Returns the number of host threads for work on behalf of `device`: the threads of a CPU device, or all cores for a
/// GPU, since the host is otherwise idle then.
int host_threads(Device& device);

/// Returns the allocated size of a buffer of `bytes` bytes aligned to ScratchFile::kAlignment, as direct I/O requires.
i64 aligned_tensor_bytes(i64 bytes);
/// Allocates a buffer of aligned_tensor_bytes(bytes), pinned for `copies` unless `copies` is null. Use
/// Tensor::reinterpret() for the element type.
PinnedTensor allocate_transfer_buffer(i64 bytes, CpuDevice& host, MemoryClass c, AsyncCopyEngine* copies);

/// Copies `from` to `to`, of the same dtype and size, on one device or between a CPU device and any other.
void copy_over(const Tensor& from, Tensor& to);

}  // namespace mcpp
