// Execution of kernels: blocks run one after another in a seeded order. The threads of a block are fibers of one host
// thread, which switch only at barriers and warp intrinsics, also in a seeded order.
#include "tests/cuda_simulator/kernel.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_simulator/capture.h"
#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/include/kernel_interface.h"
#include "tests/cuda_simulator/memory.h"
#include "tests/cuda_simulator/runtime.h"

#ifndef __x86_64__
#error "the CUDA simulator switches between threads of a kernel in x86-64 assembly"
#endif

// Saves the callee-saved registers and the stack pointer, and continues on another stack.
extern "C" void mcpp_switch_stack(void** saved, void* loaded);
asm(R"(
.text
.globl mcpp_switch_stack
.type mcpp_switch_stack,@function
mcpp_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mcpp_switch_stack,.-mcpp_switch_stack
)");

namespace mcpp::cuda_simulator {

// Kernels see these variables as constants (kernel_language.h), because they are constant for the lifetime of a fiber.
uint3 thread_index, block_index;
dim3 block_size, grid_size;

char* const shared_memory = static_cast<char*>(std::aligned_alloc(1024, kMaxSharedBytes));

namespace {

constexpr int kLanes = 32;
constexpr std::size_t kStackBytes = 128 << 10, kSavedRegisters = 6;

enum class State : char { New, Ready, AtWarp, AtBlock, Ended };

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  uint3 index{};
  State state = State::New;
  std::uint64_t value = 0;  ///< argument, then result of a warp intrinsic
  int source_lane = 0;
};

struct Warp {
  unsigned alive = 0, arrived = 0, mask = 0;
  WarpOp op{};
  std::uint64_t syncs = 0;  ///< number of __syncwarp(), which alone orders accesses to shared memory
};

/// Last accesses to four bytes of shared memory, or to one byte: barrier << 24 | __syncwarp << 10 | thread.
struct SharedShadow {
  std::uint64_t write, reads[2];
};

enum class Order { Ascending, Descending, Shuffled };

/// Executor of one block at a time. The caller holds the simulator's lock.
class BlockExecutor {
 public:
  void run_kernel(const std::string& name, const LaunchConfig& config, const std::function<void()>& body);

  int lane() const { return current_ % kLanes; }
  void* shared_variable(SharedSlot& slot, std::size_t bytes, std::size_t alignment);
  void meet_block();
  std::uint64_t meet_warp(WarpOp op, unsigned mask, std::uint64_t value, int source_lane);
  void record_shared(const void* address, std::size_t bytes, bool is_write);
  std::string place() const;

 private:
  static void fiber_entry();
  void run_block();
  void start_block();
  void check_after_block();
  void finish_fiber();
  void suspend();
  void* next_stack_pointer();
  void release_barrier();
  void release_warp(Warp& warp, Fiber* lanes);
  [[noreturn]] void fail_block(const char* why);
  char* take_stack();
  std::uint64_t shared_tag() const {
    return barriers_ << 24 | (warps_[static_cast<std::size_t>(current_ / kLanes)].syncs & 0x3FFF) << 10 |
           static_cast<unsigned>(current_);
  }
  bool conflicts(std::uint64_t earlier) const;
  void report_shared_race(std::uint64_t other, std::size_t offset, bool is_write, bool other_writes);

  std::vector<Fiber> fibers_{kMaxThreads};
  std::vector<Warp> warps_{kMaxThreads / kLanes};
  std::vector<char*> stacks_;
  char* retired_stack_ = nullptr;  // stack of the fiber that has just ended, in use until the switch
  std::vector<int> ready_;
  void *main_stack_pointer_ = nullptr, *unused_ = nullptr;
  int current_ = 0, threads_ = 0, alive_ = 0, at_barrier_ = 0;
  Order order_ = Order::Ascending;
  bool has_failed_ = false;
  std::string name_;
  const std::function<void()>* body_ = nullptr;
  std::uint64_t block_ = 0, barriers_ = 0;
  std::size_t dynamic_bytes_ = 0, shared_used_ = 0;
  std::vector<SharedShadow> shadow_ = std::vector<SharedShadow>(kMaxSharedBytes);
  std::set<std::string> reported_;  // kernels whose races in shared memory were reported
};

BlockExecutor& executor() {
  static auto* const only = new BlockExecutor;
  return *only;
}

std::string BlockExecutor::place() const {
  char text[160];
  std::snprintf(text, sizeof(text), "kernel launched at %s, block (%u %u %u), thread (%u %u %u)", name_.c_str(),
                block_index.x, block_index.y, block_index.z, thread_index.x, thread_index.y, thread_index.z);
  return text;
}

char* BlockExecutor::take_stack() {
  if (!stacks_.empty()) {
    char* const stack = stacks_.back();
    stacks_.pop_back();
    return stack;
  }
  void* p = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  return static_cast<char*>(p);
}

void BlockExecutor::fail_block(const char* why) {
  report("%s: %s", place().c_str(), why);
  has_failed_ = true;
  mcpp_switch_stack(&unused_, main_stack_pointer_);
  std::abort();
}

/// Makes the next fiber current, and returns its stack pointer; null if no fiber can run.
[[gnu::noinline]] void* BlockExecutor::next_stack_pointer() {
  if (ready_.empty()) return nullptr;
  if (order_ == Order::Shuffled) std::swap(ready_.back(), ready_[random_bits() % ready_.size()]);
  current_ = ready_.back();
  ready_.pop_back();
  Fiber& fiber = fibers_[static_cast<std::size_t>(current_)];
  thread_index = fiber.index;
  if (fiber.state == State::New) {
    fiber.stack = take_stack();
    // Tops of stacks are in different cache sets.
    const std::size_t color = static_cast<std::size_t>(current_ % 64) * 448 / 64 * 64;
    auto** top = reinterpret_cast<void**>(fiber.stack + kStackBytes - 64 - color);
    *--top = nullptr;  // return address of fiber_entry(), which never returns
    *--top = reinterpret_cast<void*>(&fiber_entry);
    for (std::size_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    fiber.stack_pointer = top;
  }
  fiber.state = State::Ready;
  return fiber.stack_pointer;
}

void BlockExecutor::suspend() {
  const int own = current_;
  void* const next = next_stack_pointer();
  if (next && current_ == own) return;
  mcpp_switch_stack(&fibers_[static_cast<std::size_t>(own)].stack_pointer, next ? next : main_stack_pointer_);
}

void BlockExecutor::fiber_entry() {
  BlockExecutor& e = executor();
  (*e.body_)();
  e.finish_fiber();
}

void BlockExecutor::finish_fiber() {
  Fiber& own = fibers_[static_cast<std::size_t>(current_)];
  own.state = State::Ended;
  Warp& warp = warps_[static_cast<std::size_t>(current_ / kLanes)];
  warp.alive &= ~(1u << lane());
  --alive_;
  if (warp.arrived && (warp.mask & ~warp.alive)) fail_block("a lane has ended that others of its warp wait for");
  if (at_barrier_ > 0) fail_block("a thread has ended while others wait at __syncthreads()");
  if (retired_stack_) stacks_.push_back(retired_stack_);
  retired_stack_ = own.stack;
  void* const next = next_stack_pointer();
  mcpp_switch_stack(&unused_, next ? next : main_stack_pointer_);
  std::abort();
}

void BlockExecutor::release_barrier() {
  at_barrier_ = 0;
  ++barriers_;
  for (int k = threads_ - 1; k >= 0; --k) {
    const int i = order_ == Order::Descending ? threads_ - 1 - k : k;
    Fiber& fiber = fibers_[static_cast<std::size_t>(i)];
    if (fiber.state != State::AtBlock) continue;
    fiber.state = State::Ready;
    ready_.push_back(i);
  }
}

void BlockExecutor::meet_block() {
  if (alive_ != threads_) fail_block("__syncthreads() after a thread of the block has ended");
  fibers_[static_cast<std::size_t>(current_)].state = State::AtBlock;
  if (++at_barrier_ == alive_) release_barrier();
  suspend();
}

void BlockExecutor::release_warp(Warp& warp, Fiber* lanes) {
  std::uint64_t values[kLanes], ballot = 0;
  for (int i = 0; i < kLanes; ++i) {
    values[i] = lanes[i].value;
    if (warp.mask >> i & 1) ballot |= std::uint64_t{values[i] != 0} << i;
  }
  const int first = static_cast<int>(&lanes[0] - fibers_.data());
  for (int k = 0; k < kLanes; ++k) {
    const int i = order_ == Order::Descending ? k : kLanes - 1 - k;
    if (!(warp.mask >> i & 1)) continue;
    Fiber& fiber = lanes[i];
    if (warp.op == WarpOp::Shuffle) {
      const int source = fiber.source_lane & (kLanes - 1);
      if (!(warp.mask >> source & 1)) fail_block("a shuffle from a lane outside of the mask");
      fiber.value = values[source];
    } else if (warp.op == WarpOp::Ballot) {
      fiber.value = ballot;
    } else if (warp.op == WarpOp::MatchAny) {
      fiber.value = 0;
      for (int j = 0; j < kLanes; ++j)
        fiber.value |= std::uint64_t{(warp.mask >> j & 1) && values[j] == values[i]} << j;
    }
    fiber.state = State::Ready;
    ready_.push_back(first + i);
  }
  if (warp.op == WarpOp::Sync) ++warp.syncs;
  warp.arrived = 0;
}

std::uint64_t BlockExecutor::meet_warp(WarpOp op, unsigned mask, std::uint64_t value, int source_lane) {
  const int own_lane = lane(), first = current_ / kLanes * kLanes;
  Warp& warp = warps_[static_cast<std::size_t>(current_ / kLanes)];
  Fiber* const lanes = &fibers_[static_cast<std::size_t>(first)];
  Fiber& own = lanes[own_lane];
  if (!(mask >> own_lane & 1)) fail_block("a lane calls a warp intrinsic with a mask that lacks it");
  if (mask & ~warp.alive) fail_block("the mask of a warp intrinsic has lanes that have ended or do not exist");
  if (warp.arrived != 0 && (warp.op != op || warp.mask != mask))
    fail_block("lanes of a warp meet at different intrinsics, or with different masks");
  warp.op = op;
  warp.mask = mask;
  own.value = value;
  own.source_lane = source_lane;
  own.state = State::AtWarp;
  warp.arrived |= 1u << own_lane;
  if (warp.arrived == warp.mask) release_warp(warp, lanes);
  suspend();
  return own.value;
}

void* BlockExecutor::shared_variable(SharedSlot& slot, std::size_t bytes, std::size_t alignment) {
  if (slot.block == block_) return slot.data;
  slot.block = block_;
  const std::size_t offset = (shared_used_ + alignment - 1) / alignment * alignment;
  if (offset + bytes > kMaxSharedBytes || offset + bytes - dynamic_bytes_ > kDefaultSharedBytes)
    fail_block("too much shared memory");
  shared_used_ = offset + bytes;
  slot.data = shared_memory + offset;
  std::memset(slot.data, 0xFF, bytes);
  return slot.data;
}

/// Returns true if an access with this tag is by another thread and not ordered before the current one.
bool BlockExecutor::conflicts(std::uint64_t earlier) const {
  const std::uint64_t own = shared_tag();
  const std::uint64_t thread = earlier & 0x3FF, own_thread = own & 0x3FF;
  if (earlier >> 24 != own >> 24 || thread == own_thread) return false;
  return thread / kLanes != own_thread / kLanes || (earlier >> 10 & 0x3FFF) == (own >> 10 & 0x3FFF);
}

void BlockExecutor::report_shared_race(std::uint64_t other, std::size_t offset, bool is_write, bool other_writes) {
  if (!reported_.insert(name_).second) return;
  report("%s: race: %s byte %zu of shared memory, which thread %u %s; no barrier orders them", place().c_str(),
         is_write ? "writes" : "reads", offset, static_cast<unsigned>(other & 0x3FF), other_writes ? "wrote" : "read");
}

void BlockExecutor::record_shared(const void* address, std::size_t bytes, bool is_write) {
  if (!settings().checks_races) return;
  const auto begin = static_cast<std::size_t>(static_cast<const char*>(address) - shared_memory);
  if (begin + bytes > shared_used_) fail_block("an access beyond the shared memory of the block");
  const std::uint64_t own = shared_tag();
  const std::size_t step = bytes >= 4 ? 4 : 1;
  for (std::size_t at = begin; at < begin + bytes; at += step) {
    SharedShadow& s = shadow_[at];
    if (s.write != own && conflicts(s.write)) report_shared_race(s.write, at, is_write, true);
    if (is_write) {
      for (const std::uint64_t read : s.reads)
        if (conflicts(read)) report_shared_race(read, at, is_write, false);
      s = {own, {0, 0}};
    } else if (s.reads[0] != own && conflicts(s.reads[0])) {
      s.reads[1] = own;
    } else {
      s.reads[0] = own;
    }
  }
}

void BlockExecutor::start_block() {
  alive_ = threads_;
  at_barrier_ = 0;
  has_failed_ = false;
  ++block_;
  ++barriers_;
  order_ = static_cast<Order>(random_bits() % 3);
  std::memset(shared_memory, 0xFF, dynamic_bytes_);
  shared_used_ = dynamic_bytes_;
  ready_.clear();
  for (int k = threads_ - 1; k >= 0; --k) {
    const int i = order_ == Order::Descending ? threads_ - 1 - k : k;
    Fiber& fiber = fibers_[static_cast<std::size_t>(i)];
    fiber.state = State::New;
    const auto u = static_cast<unsigned>(i);
    fiber.index = {u % block_size.x, u / block_size.x % block_size.y, u / block_size.x / block_size.y};
    ready_.push_back(i);
  }
  for (int first = 0; first < threads_; first += kLanes) {
    const int lanes = std::min(kLanes, threads_ - first);
    warps_[static_cast<std::size_t>(first / kLanes)] = {.alive = lanes == kLanes ? ~0u : (1u << lanes) - 1};
  }
}

void BlockExecutor::check_after_block() {
  if (!has_failed_ && alive_ > 0) report("%s: %d threads wait for one another forever", place().c_str(), alive_);
  if (has_failed_ || alive_ > 0) {
    for (int i = 0; i < threads_; ++i) {
      const Fiber& fiber = fibers_[static_cast<std::size_t>(i)];
      if (fiber.state != State::Ended && fiber.state != State::New) stacks_.push_back(fiber.stack);
    }
    has_failed_ = true;
  }
}

void BlockExecutor::run_block() {
  start_block();
  if (void* const first = next_stack_pointer()) mcpp_switch_stack(&main_stack_pointer_, first);
  check_after_block();
}

void BlockExecutor::run_kernel(const std::string& name, const LaunchConfig& config, const std::function<void()>& body) {
  name_ = name;
  body_ = &body;
  dynamic_bytes_ = config.shared_bytes;
  grid_size = config.grid;
  block_size = config.block;
  threads_ = static_cast<int>(config.block.x * config.block.y * config.block.z);
  const std::uint64_t count = std::uint64_t{config.grid.x} * config.grid.y * config.grid.z;
  // A seeded permutation of the blocks: i -> (factor i + shift) mod count.
  const std::uint64_t shift = random_bits() % count;
  std::uint64_t factor = random_bits() % 2 ? 1 : 1 + random_bits() % count;
  while (std::gcd(factor, count) != 1) ++factor;
  constexpr std::uint64_t kSmallGrid = 64;  // writes indices that later kernels use
  const auto most = static_cast<std::uint64_t>(settings().blocks);
  const bool runs_all = most == 0 || count <= std::max(most, kSmallGrid);
  const CostModel* const model = cost_model();
  if (model) KernelTraffic().begin_kernel(runs_all);
  for (std::uint64_t i = 0; i < (runs_all ? count : most); ++i) {
    const auto block = runs_all
                           ? static_cast<std::uint64_t>((static_cast<unsigned __int128>(factor) * i + shift) % count)
                       : i < most / 2 ? i
                                      : count - most + i;
    block_index = {static_cast<unsigned>(block % config.grid.x),
                   static_cast<unsigned>(block / config.grid.x % config.grid.y),
                   static_cast<unsigned>(block / config.grid.x / config.grid.y)};
    if (model) KernelTraffic().begin_block();
    run_block();
    if (has_failed_) return;
  }
  if (model)
    spend(model->kernel(
        KernelTraffic().end_kernel(static_cast<double>(count) / static_cast<double>(runs_all ? count : most))));
}

/// Limits of dynamic shared memory that were requested, and kernels that have been launched, by device.
struct KernelTable {
  std::map<const void*, int> shared_limits;
  std::set<std::pair<int, const void*>> loaded;
};
KernelTable& kernel_table() {
  static auto* const only = new KernelTable;
  return *only;
}

/// Returns the reason why the GPU would reject the launch, or null.
const char* rejection(const void* kernel, const LaunchConfig& c, std::size_t argument_bytes) {
  constexpr unsigned kMaxGridX = 2147483647, kMaxGridYZ = 65535, kMaxBlockZ = 64;
  constexpr std::size_t kMaxArgumentBytes = 4096;
  if (c.grid.x == 0 || c.grid.y == 0 || c.grid.z == 0) return "the grid is empty";
  if (c.block.x == 0 || c.block.y == 0 || c.block.z == 0) return "the block is empty";
  if (c.grid.x > kMaxGridX || c.grid.y > kMaxGridYZ || c.grid.z > kMaxGridYZ) return "the grid is too large";
  if (c.block.z > kMaxBlockZ || std::uint64_t{c.block.x} * c.block.y * c.block.z > kMaxThreads)
    return "the block is too large";
  if (argument_bytes > kMaxArgumentBytes) return "more than 4096 bytes of arguments";
  const auto it = kernel_table().shared_limits.find(kernel);
  const std::size_t limit = it == kernel_table().shared_limits.end() ? 0 : static_cast<std::size_t>(it->second);
  if (c.shared_bytes > std::max(kDefaultSharedBytes, limit)) return "more shared memory than was requested for it";
  return nullptr;
}

}  // namespace

void enqueue_kernel(const void* kernel, const LaunchConfig& config, std::size_t argument_bytes,
                    std::function<void()> thread_body) {
  Lock lock(simulator_mutex());
  const char* const file = config.site.file_name();
  const char* const slash = std::strrchr(file, '/');
  const std::string name = std::string(slash ? slash + 1 : file) + ":" + std::to_string(config.site.line());
  if (const char* why = rejection(kernel, config, argument_bytes)) {
    report("kernel launch at %s rejected: %s (grid %u %u %u, block %u %u %u, %zu bytes of shared memory)", name.c_str(),
           why, config.grid.x, config.grid.y, config.grid.z, config.block.x, config.block.y, config.block.z,
           config.shared_bytes);
    remember_error(cudaErrorInvalidConfiguration);
    return;
  }
  if (sticky_error() != cudaSuccess) return;
  if (should_fail("launch")) {
    remember_error(cudaErrorLaunchOutOfResources);
    return;
  }
  if (kernel_table().loaded.insert({current_device(), kernel}).second && settings().late_loading) {
    if (is_capturing(config.stream)) {
      invalidate_capture(config.stream, cudaErrorStreamCaptureUnsupported);
      return;
    }
    drain_device(lock, current_device(), "loading of a kernel");
  }
  enqueue(config.stream, {.name = "kernel at " + name, .run = [name, config, body = std::move(thread_body)] {
                            if (sticky_error() != cudaSuccess || should_fail("kernel")) return;
                            if (should_fail("memory")) flip_bit_of_device_memory();
                            executor().run_kernel(name, config, body);
                          }});
}

void* shared_variable_memory(SharedSlot& slot, std::size_t bytes, std::size_t alignment) {
  return executor().shared_variable(slot, bytes, alignment);
}
void* dynamic_shared_memory() {
  return shared_memory;
}
void check_alignment(const void* address, std::size_t bytes, const char* access) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    report("%s: %s of %zu bytes at an address that is not a multiple of it", executor().place().c_str(), access, bytes);
}
void record_atomic(const void* address, std::size_t bytes) {
  if (is_shared_memory(address)) return;
  record_access(address, bytes, true);
  if (cost_model()) KernelTraffic().add(address, bytes, true);
}
std::uint64_t meet_warp(WarpOp op, unsigned mask, std::uint64_t value, int source_lane) {
  return executor().meet_warp(op, mask, value, source_lane);
}
void meet_block() {
  executor().meet_block();
}
int lane_index() {
  return executor().lane();
}
void report_index_overflow(const char* type, std::int64_t value) {
  report("%s: an index of %lld does not fit in %s", executor().place().c_str(), static_cast<long long>(value), type);
}
void report_integer_overflow(const char* operation, const char* file, unsigned line) {
  report("%s: %s overflows a signed integer at %s:%u", executor().place().c_str(), operation, file, line);
}
void record_shared_access(const void* address, std::size_t bytes, bool is_write) {
  executor().record_shared(address, bytes, is_write);
}

}  // namespace mcpp::cuda_simulator

extern "C" cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  using namespace mcpp::cuda_simulator;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<std::size_t>(value) > kMaxSharedBytes) return remember_error(cudaErrorInvalidValue);
  const Lock lock(simulator_mutex());
  kernel_table().shared_limits[kernel] = value;
  return cudaSuccess;
}
