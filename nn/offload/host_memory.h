// Memory of the host for numbers on their way between a device and elsewhere.
#pragma once
#include <span>

#include "tensor/host/host_rooms.h"

namespace mcpp {

/// The device of the CPU in whose memory the host works on what is on `device`: that itself where it is of the CPU, and
/// then it must outlive this; else one of its own, with as many threads.
std::shared_ptr<CpuDevice> host_beside(Device& device, int threads = 1);

/// Threads of the host for what it computes for `device`: as many as that has, and all where it is a GPU, since the
/// host has nothing else to compute then.
int host_threads(Device& device);

/// Memory that begins at a multiple of ScratchFile::kAlignment, for transfers past the page cache: what so many bytes
/// of it take of the host's.
i64 aligned_tensor_bytes(i64 bytes);
/// Such memory for numbers of any type (Tensor::reinterpret()) that go on to a device, or come from one, by `copies`:
/// null where there are none.
PinnedTensor transfer_room(i64 bytes, CpuDevice& host, MemoryClass c, SideCopies* copies);

/// to = from, of the same type and size, on the same device or on two of which one is of the CPU.
void copy_over(const Tensor& from, Tensor& to);

/// The memory of a tensor of the CPU.
std::span<std::byte> bytes_of(const Tensor& t);

}  // namespace mcpp
