#include "checkpoint/format/block_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace mcpp {

BlockMemory::BlockMemory() : memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBlocks * kBlockBytes))) {
  if (!memory_) throw std::bad_alloc();
  ::madvise(memory_.get(), kBlocks * kBlockBytes, MADV_HUGEPAGE);
}

std::span<std::byte> BlockMemory::block(i64 number) const {
  return {memory_.get() + number % kBlocks * kBlockBytes, static_cast<std::size_t>(kBlockBytes)};
}

void BlockMemory::Free::operator()(std::byte* data) const {
  std::free(data);
}

}  // namespace mcpp
