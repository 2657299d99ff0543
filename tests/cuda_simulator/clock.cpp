#include "tests/cuda_simulator/clock.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <unordered_map>
#include <vector>

#include "tests/cuda_simulator/memory.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

std::atomic<const CostModel*> model{nullptr};
thread_local double host_time = 0;

}  // namespace

const CostModel* cost_model() {
  return model;
}

double host_seconds() {
  return host_time;
}
void advance_host_to(double seconds) {
  host_time = std::max(host_time, seconds);
}

struct KernelTraffic::Impl {
  std::vector<std::uint64_t> block;                   // sector << 1 | is_write, of the current block
  std::unordered_map<std::uint64_t, bool> is_shared;  // by sector
  bool runs_all = true;
  std::vector<std::span<char>> writes;  // only if !runs_all

  void replace_results() const;
};

/// Writes kFinitePattern to everything that the kernel wrote, and to all of the allocation if that is small.
void KernelTraffic::Impl::replace_results() const {
  constexpr std::size_t kSmallAllocation = std::size_t{1} << 20;
  std::span<char> last;
  for (const std::span<char>& write : writes) {
    std::ranges::fill(write, static_cast<char>(kFinitePattern));
    if (write.data() >= last.data() && write.data() < last.data() + last.size()) continue;
    last = allocation_at(write.data());
    if (last.size() <= kSmallAllocation) std::ranges::fill(last, static_cast<char>(kFinitePattern));
  }
}

KernelTraffic::Impl& KernelTraffic::impl() {
  static auto* const only = new Impl;
  return *only;
}

void KernelTraffic::begin_kernel(bool runs_all) {
  Impl& i = impl();
  i.block.clear();
  i.is_shared.clear();
  i.runs_all = runs_all;
  i.writes.clear();
}

void KernelTraffic::begin_block() {
  Impl& i = impl();
  std::ranges::sort(i.block);
  i.block.erase(std::unique(i.block.begin(), i.block.end()), i.block.end());
  for (const std::uint64_t sector : i.block) {
    const auto [at, is_new] = i.is_shared.try_emplace(sector, false);
    if (!is_new) at->second = true;
  }
  i.block.clear();
}

void KernelTraffic::add(const void* address, std::size_t bytes, bool is_write) {
  constexpr std::uint64_t kSector = 32;
  Impl& i = impl();
  if (is_write && !i.runs_all) i.writes.emplace_back(static_cast<char*>(const_cast<void*>(address)), bytes);
  std::vector<std::uint64_t>& block = i.block;
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  for (std::uint64_t sector = begin / kSector; sector <= (begin + bytes - 1) / kSector; ++sector) {
    const std::uint64_t entry = sector << 1 | std::uint64_t{is_write};
    if (block.empty() || block.back() != entry) block.push_back(entry);
  }
}

double KernelTraffic::end_kernel(double blocks_per_executed_block) {
  constexpr double kSector = 32;
  begin_block();
  impl().replace_results();
  double total = 0;
  for (const auto& [sector, is_shared] : impl().is_shared)
    total += kSector * (is_shared ? 1 : blocks_per_executed_block);
  return total;
}

void set_cost_model(const CostModel* replacement) {
  const Lock lock(simulator_mutex());
  model = replacement;
  host_time = 0;
}

}  // namespace mcpp::cuda_simulator
