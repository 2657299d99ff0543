// Injected faults: one call of one function fails, or one bit flips, as hardware and drivers do.
#include <atomic>
#include <cstdio>
#include <string_view>

#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

std::atomic<int> calls{0};
std::atomic<bool> has_sticky_error{false};

}  // namespace

bool should_fail(const char* function) {
  if (settings().fault_number == 0 || settings().fault_call != function) return false;
  if (++calls != settings().fault_number) return false;
  std::fprintf(stderr, "CUDA simulator: injected a fault into call %d of %s\n", settings().fault_number, function);
  if (std::string_view(function) == "kernel") has_sticky_error = true;
  return true;
}

void flip_bit(void* data, std::size_t bytes) {
  const std::uint64_t bit = random_bits() % (8 * bytes);
  static_cast<unsigned char*>(data)[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  std::fprintf(stderr, "CUDA simulator: flipped bit %llu of %zu bytes\n", static_cast<unsigned long long>(bit), bytes);
}

void reset_faults() {
  calls = 0;
  has_sticky_error = false;
}

cudaError_t sticky_error() {
  return has_sticky_error ? cudaErrorIllegalAddress : cudaSuccess;
}

}  // namespace mcpp::cuda_simulator
