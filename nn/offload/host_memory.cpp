#include "nn/offload/host_memory.h"

#include <algorithm>
#include <thread>

#include "base/io/scratch_file.h"
#include "tensor/device.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

Tensor aligned_tensor(i64 bytes, DType dtype, Device& device, MemoryClass c) {
  const i64 size = size_of(dtype);
  const Tensor padded = Tensor::empty({(bytes + ScratchFile::kAlignment) / size}, dtype, device, c);
  const auto address = reinterpret_cast<std::uintptr_t>(padded.raw());
  const auto excess = static_cast<i64>(address % ScratchFile::kAlignment);
  return padded.flat(excess == 0 ? 0 : (ScratchFile::kAlignment - excess) / size, bytes / size);
}

}  // namespace

std::shared_ptr<CpuDevice> host_device_for(Device& device, int threads) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (!cpu) return std::make_shared<CpuDevice>(CpuOptions{.threads = threads});
  return {std::shared_ptr<void>(), cpu};  // not owned
}

int host_threads(Device& device) {
  const auto* cpu = dynamic_cast<CpuDevice*>(&device);
  return cpu ? cpu->threads() : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

i64 aligned_tensor_bytes(i64 bytes) {
  return padded_alloc_size(bytes + ScratchFile::kAlignment);
}

PinnedTensor allocate_transfer_buffer(i64 bytes, CpuDevice& host, MemoryClass c, AsyncCopyEngine* copies) {
  constexpr DType kShortest = DType::BF16;
  if (copies && !copies->is_synchronous())
    return pinned_tensor({bytes / size_of(kShortest)}, kShortest, host, c, *copies);
  return {.tensor = aligned_tensor(bytes, kShortest, host, c)};
}

void copy_over(const Tensor& from, Tensor& to) {
  if (&from.device() == &to.device()) return ops::copy(from, to);
  const bool is_to_host = to.device().type() == DeviceType::Cpu;
  MCPP_CHECK(is_to_host || from.device().type() == DeviceType::Cpu,
             "a copy between two devices requires that one is a CPU");
  is_to_host ? read_bytes(from, to.raw()) : write_bytes(from.raw(), to);
}

}  // namespace mcpp
