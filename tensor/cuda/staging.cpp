#include "tensor/cuda/staging.h"

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
  for (i64 done = 0; done < bytes; done += kPiece)
    write_piece(source + done, target + done, std::min(kPiece, bytes - done), stream);
}

void Staging::write_piece(const void* from, void* to, i64 bytes, cudaStream_t stream) {
  std::optional<i64> place;
  while (!(place = ring_.take(bytes))) {
    copied_.front().synchronize();
    copied_.pop_front();
    ring_.release_oldest();
  }
  std::byte* staged = memory_ + *place;
  std::memcpy(staged, from, static_cast<std::size_t>(bytes));
  const CudaEvent& copied = copied_.emplace_back(cudaEventDisableTiming);
  check_cuda(cudaMemcpyAsync(to, staged, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream),
             "cudaMemcpyAsync");
  copied.record(stream);
}

}  // namespace mcpp
