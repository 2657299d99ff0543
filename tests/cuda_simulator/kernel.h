// Execution of kernels on the CPU.
#pragma once
#include <cstddef>

namespace mcpp::cuda_simulator {

// Limits of an H100.
constexpr int kMaxThreads = 1024;
constexpr std::size_t kDefaultSharedBytes = 49152, kMaxSharedBytes = 232448;

/// Records an access of the running thread to shared memory: finds races between the threads of a block.
void record_shared_access(const void* address, std::size_t bytes, bool is_write);
/// Reports a sum, difference or product of signed integers that overflows in the code of a kernel.
void report_integer_overflow(const char* operation, const char* file, unsigned line);
/// Shared memory of the running block.
extern char* const shared_memory;
inline bool is_shared_memory(const void* address) {
  return static_cast<std::size_t>(static_cast<const char*>(address) - shared_memory) < kMaxSharedBytes;
}

}  // namespace mcpp::cuda_simulator
