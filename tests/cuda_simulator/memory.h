// Memory of the simulated GPUs, pinned memory, and the shadow memory that finds races.
#pragma once
#include <span>
#include <string>

#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {

/// Operation whose accesses are recorded.
struct OperationContext {
  std::size_t stream = 0;
  std::uint32_t number = 0;            ///< on the stream, from 1
  const VectorClock* clock = nullptr;  ///< clock of the operations that happen before this one
  /// Operation::newest_allocation: later allocations have replaced memory that the graph used when it was captured.
  std::uint64_t newest_allocation = 0;
};
void begin_operation(const OperationContext& context);
void end_operation();
/// Stores the name of an operation for reports.
void name_operation(std::size_t stream, std::uint32_t number, const std::string& name);

/// Byte of a pattern of small positive values in every format, for memory that is not computed if only time is
/// simulated.
constexpr int kFinitePattern = 0x3C;
/// Allocates memory filled with NaN patterns, or with kFinitePattern if only time is simulated; null if the arena has
/// none left.
void* allocate_device_memory(std::size_t bytes);
void* allocate_pinned_memory(std::size_t bytes);
/// Frees memory of either kind, and returns its size; 0 if it is not allocated.
std::size_t free_memory(void* data);

/// Returns the number of allocations so far.
std::uint64_t newest_allocation();

/// Returns the allocation that contains the address; empty outside of allocations.
std::span<char> allocation_at(const void* address);

/// Flips a seeded bit of an allocation of a GPU; larger ones are more likely.
void flip_bit_of_device_memory();

bool is_device_memory(const void* address);
/// Returns true if the range is pinned: allocated or registered.
bool is_pinned_memory(const void* address, std::size_t bytes);
bool register_pinned_memory(void* address, std::size_t bytes);
/// Returns the size of the registration, or 0.
std::size_t unregister_pinned_memory(void* address);

/// Address space of device memory, followed by pinned memory. Freed memory is reused for the same size only.
constexpr std::size_t kDeviceArena = std::size_t{192} << 30, kPinnedArena = std::size_t{8} << 30;
constexpr std::size_t kArena = kDeviceArena + kPinnedArena;
extern char* const arena;
inline bool is_in_arena(const void* address) {
  return static_cast<std::size_t>(static_cast<const char*>(address) - arena) < kArena;
}

}  // namespace mcpp::cuda_simulator
