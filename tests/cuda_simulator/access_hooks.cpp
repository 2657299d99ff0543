// Functions that instrumented kernels call for every access to memory. Kernel sources are compiled with the thread
// sanitizer's instrumentation, but linked with these functions instead of its library, which does not support GPUs. The
// handlers of the undefined behavior sanitizer for signed overflow are replaced as well.
#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/kernel.h"
#include "tests/cuda_simulator/memory.h"

namespace {

void record(const void* address, std::size_t bytes, bool is_write) {
  using namespace mcpp::cuda_simulator;
  if (is_shared_memory(address))
    record_shared_access(address, bytes, is_write);
  else if (is_in_arena(address)) {
    record_access(address, bytes, is_write);
    if (cost_model()) KernelTraffic().add(address, bytes, is_write);
  }
}

}  // namespace

#define MCPP_ACCESS_HOOKS(bytes)                      \
  void __tsan_read##bytes(void* address) {            \
    record(address, bytes, false);                    \
  }                                                   \
  void __tsan_write##bytes(void* address) {           \
    record(address, bytes, true);                     \
  }                                                   \
  void __tsan_unaligned_read##bytes(void* address) {  \
    record(address, bytes, false);                    \
  }                                                   \
  void __tsan_unaligned_write##bytes(void* address) { \
    record(address, bytes, true);                     \
  }                                                   \
  void __tsan_volatile_read##bytes(void* address) {   \
    record(address, bytes, false);                    \
  }                                                   \
  void __tsan_volatile_write##bytes(void* address) {  \
    record(address, bytes, true);                     \
  }

/// First members of the compiler's description of an operation that overflows.
struct OverflowSite {
  const char* file;
  std::uint32_t line, column;
};

extern "C" {

MCPP_ACCESS_HOOKS(1)
MCPP_ACCESS_HOOKS(2)
MCPP_ACCESS_HOOKS(4)
MCPP_ACCESS_HOOKS(8)
MCPP_ACCESS_HOOKS(16)
void __tsan_read_range(void* address, std::size_t bytes) {
  record(address, bytes, false);
}
void __tsan_write_range(void* address, std::size_t bytes) {
  record(address, bytes, true);
}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Atomic loads of reference counts and flags in host code of kernel sources.
long __tsan_atomic64_load(const volatile long* from, int) {
  return __atomic_load_n(from, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_add(volatile int* to, int value, int) {
  return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST);
}

void __ubsan_handle_add_overflow(const OverflowSite* at, void*, void*) {
  mcpp::cuda_simulator::report_integer_overflow("a sum", at->file, at->line);
}
void __ubsan_handle_sub_overflow(const OverflowSite* at, void*, void*) {
  mcpp::cuda_simulator::report_integer_overflow("a difference", at->file, at->line);
}
void __ubsan_handle_mul_overflow(const OverflowSite* at, void*, void*) {
  mcpp::cuda_simulator::report_integer_overflow("a product", at->file, at->line);
}
void __ubsan_handle_divrem_overflow(const OverflowSite* at, void*, void*) {
  mcpp::cuda_simulator::report_integer_overflow("a quotient", at->file, at->line);
}
void __ubsan_handle_negate_overflow(const OverflowSite* at, void*) {
  mcpp::cuda_simulator::report_integer_overflow("a negation", at->file, at->line);
}

}  // extern "C"
