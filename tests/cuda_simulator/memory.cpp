// Arenas of device and pinned memory with a shadow word group per four bytes, which holds the last operations that
// wrote and read them (Flanagan, Freund, "FastTrack", 2009). The arenas are reserved address space, so a lookup is a
// shift.
#include "tests/cuda_simulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

namespace mcpp::cuda_simulator {
namespace {

void* reserve(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED) return p;
  std::fprintf(stderr, "CUDA simulator: cannot reserve %zu GiB of address space\n", bytes >> 30);
  std::exit(1);
}

}  // namespace

char* const arena = static_cast<char*>(reserve(kArena));

namespace {

constexpr std::size_t kGranule = 4, kAlignment = 512, kRedZone = 512;
/// Larger allocations have no shadow memory: only tests of memory use need them, not tests of ordering.
constexpr std::size_t kMaxTracked = std::size_t{64} << 20;

/// Stream and number of an operation in one word.
using Epoch = std::uint32_t;
constexpr int kNumberBits = 22;
constexpr Epoch kUnallocated = 0, kUntracked = 1, kNobody = 2, kFreed = 3, kFirstOperation = 1u << kNumberBits;
constexpr std::size_t kMaxStream = (1u << (32 - kNumberBits)) - 1;
constexpr std::uint32_t kMaxNumber = (1u << kNumberBits) - 1;

struct Shadow {
  Epoch write, reads[2];
};

struct Memory {
  Shadow* const shadow = static_cast<Shadow*>(reserve(kArena / kGranule * sizeof(Shadow)));
  std::size_t device_end = 0, pinned_end = kDeviceArena;
  std::map<std::size_t, std::size_t> sizes;      // sizes of allocations, by offset
  std::map<std::size_t, std::uint64_t> numbers;  // sequence numbers of allocations, by offset
  std::uint64_t allocations = 0;
  std::size_t known_begin = 0, known_end = 0;                 // allocation that the operation may access
  std::map<std::size_t, std::set<std::size_t>> free_offsets;  // by rounded size; below or above kDeviceArena
  std::map<const char*, std::size_t> registered;
  std::vector<std::vector<const std::string*>> names;  // by stream and number
  std::set<std::string> interned;
  OperationContext context{};
  bool in_operation = false;
  std::set<std::pair<const std::string*, const std::string*>> reported;
};
Memory& memory() {
  static auto* const only = new Memory;
  return *only;
}

std::size_t rounded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + kRedZone + kAlignment - 1) / kAlignment * kAlignment;
}

void fill_shadow(std::size_t offset, std::size_t bytes, Epoch write) {
  Shadow* const first = memory().shadow + offset / kGranule;
  std::fill_n(first, (bytes + kGranule - 1) / kGranule, Shadow{write, {kNobody, kNobody}});
}

void* allocate(std::size_t bytes, std::size_t& arena_end, std::size_t limit) {
  Memory& m = memory();
  const std::size_t size = rounded(bytes);
  auto& free_list = m.free_offsets[size * 2 + (limit == kArena)];
  std::size_t offset = 0;
  if (!free_list.empty()) {
    offset = *free_list.begin();
    free_list.erase(free_list.begin());
  } else {
    if (size > limit - arena_end) return nullptr;
    offset = arena_end;
    arena_end += size;
  }
  m.sizes[offset] = bytes;
  m.numbers[offset] = ++m.allocations;
  if (bytes <= kMaxTracked) {
    fill_shadow(offset, bytes, kNobody);
    std::memset(arena + offset, settings().computes ? 0xFF : kFinitePattern, bytes);
  }
  return arena + offset;
}

/// Returns the pages of a range to the system; the range is zero then.
void discard(char* data, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
  const std::size_t pages = (bytes - before) / kPage * kPage;
  std::memset(data, 0, before);
  madvise(data + before, pages, MADV_DONTNEED);
  std::memset(data + before + pages, 0, bytes - before - pages);
}

/// Returns the allocation that contains the offset, or the end.
auto allocation_of(std::size_t offset) {
  Memory& m = memory();
  auto found = m.sizes.upper_bound(offset);
  if (found == m.sizes.begin()) return m.sizes.end();
  --found;
  return offset < found->first + found->second ? found : m.sizes.end();
}

std::string describe_epoch(Epoch epoch) {
  const std::size_t stream = epoch >> kNumberBits, number = epoch & kMaxNumber;
  const auto& names = memory().names;
  if (stream < names.size() && number < names[stream].size() && names[stream][number])
    return *names[stream][number] + " on stream " + std::to_string(stream);
  return "an operation on stream " + std::to_string(stream);
}

std::string describe_current() {
  const Memory& m = memory();
  return m.in_operation ? describe_epoch(static_cast<Epoch>(m.context.stream << kNumberBits | m.context.number))
                        : "the host";
}

std::string describe_address(std::size_t offset) {
  const auto found = allocation_of(offset);
  const char* kind = offset < kDeviceArena ? "device" : "pinned";
  if (found == memory().sizes.end()) return std::string(kind) + " memory outside of any allocation";
  return "byte " + std::to_string(offset - found->first) + " of " + kind + " memory of " +
         std::to_string(found->second) + " bytes";
}

void report_race(std::size_t offset, bool is_write, Epoch other, bool other_writes) {
  Memory& m = memory();
  const std::string current = describe_current(), earlier = describe_epoch(other);
  const auto key = std::pair(&*m.interned.insert(current).first, &*m.interned.insert(earlier).first);
  if (!m.reported.insert(key).second) return;
  report("race: %s %s %s, which %s %s; no event orders them", current.c_str(), is_write ? "writes" : "reads",
         describe_address(offset).c_str(), earlier.c_str(), other_writes ? "wrote" : "read");
}

/// Reports the access of a graph to memory that was allocated after the capture.
void check_age(std::size_t offset, bool is_write) {
  Memory& m = memory();
  if (m.known_begin <= offset && offset < m.known_end) return;
  const auto found = allocation_of(offset);
  if (found == m.sizes.end()) return;  // reported by the shadow memory
  m.known_begin = found->first, m.known_end = found->first + found->second;
  if (m.numbers.at(found->first) <= m.context.newest_allocation) return;
  report("%s %s %s, which was allocated after the graph had been captured", describe_current().c_str(),
         is_write ? "writes" : "reads", describe_address(offset).c_str());
}

bool is_ordered(Epoch epoch) {
  if (epoch < kFirstOperation) return true;
  return (*memory().context.clock)[epoch >> kNumberBits] >= (epoch & kMaxNumber);
}

void check_granule(std::size_t offset, bool is_write, Epoch own) {
  Shadow& s = memory().shadow[offset / kGranule];
  if (s.write == own && (is_write || s.reads[0] == own)) return;
  if (s.write == kUnallocated || s.write == kFreed) {
    const auto found = allocation_of(offset);
    if (s.write == kUnallocated && found != memory().sizes.end()) return;  // without shadow
    report("%s %s %s", describe_current().c_str(), is_write ? "writes" : "reads", describe_address(offset).c_str());
    s.write = own;
    return;
  }
  if (!is_ordered(s.write)) report_race(offset, is_write, s.write, true);
  if (!is_write) {
    if (s.reads[0] == own || is_ordered(s.reads[0]))
      s.reads[0] = own;
    else
      s.reads[1] = own;
    return;
  }
  for (const Epoch read : s.reads)
    if (!is_ordered(read)) report_race(offset, is_write, read, false);
  s = {own, {kNobody, kNobody}};
}

}  // namespace

void begin_operation(const OperationContext& context) {
  memory().context = context;
  memory().in_operation = true;
  memory().known_begin = memory().known_end = 0;
}
void end_operation() {
  memory().in_operation = false;
}

void name_operation(std::size_t stream, std::uint32_t number, const std::string& name) {
  Memory& m = memory();
  if (stream >= m.names.size()) m.names.resize(stream + 1);
  auto& names = m.names[stream];
  if (number >= names.size()) names.resize(number + 1);
  names[number] = &*m.interned.insert(name).first;
}

void* allocate_device_memory(std::size_t bytes) {
  return allocate(bytes, memory().device_end, kDeviceArena);
}
void* allocate_pinned_memory(std::size_t bytes) {
  return allocate(bytes, memory().pinned_end, kArena);
}

std::size_t free_memory(void* data) {
  Memory& m = memory();
  const auto offset = static_cast<std::size_t>(static_cast<char*>(data) - arena);
  const auto it = m.sizes.find(offset);
  if (it == m.sizes.end()) return 0;
  const std::size_t bytes = it->second, size = rounded(bytes);
  if (bytes <= kMaxTracked) {
    if (m.in_operation) record_access(data, bytes, true);
    std::memset(data, settings().computes ? 0xFF : kFinitePattern, bytes);
    fill_shadow(offset, bytes, kFreed);
  } else {
    discard(static_cast<char*>(data), bytes);
  }
  m.sizes.erase(it);
  m.free_offsets[size * 2 + (offset >= kDeviceArena)].insert(offset);
  return bytes;
}

std::uint64_t newest_allocation() {
  return memory().allocations;
}

std::span<char> allocation_at(const void* address) {
  const auto it = allocation_of(static_cast<std::size_t>(static_cast<const char*>(address) - arena));
  return it == memory().sizes.end() ? std::span<char>() : std::span<char>(arena + it->first, it->second);
}

void flip_bit_of_device_memory() {
  const auto end = memory().sizes.lower_bound(kDeviceArena);
  std::size_t total = 0;
  for (auto i = memory().sizes.begin(); i != end; ++i) total += i->second;
  std::size_t at = total > 0 ? random_bits() % total : 0;
  for (auto i = memory().sizes.begin(); i != end; at -= i->second, ++i)
    if (at < i->second) return flip_bit(arena + i->first, i->second);
}

bool is_device_memory(const void* address) {
  return static_cast<std::size_t>(static_cast<const char*>(address) - arena) < kDeviceArena;
}

bool is_pinned_memory(const void* address, std::size_t bytes) {
  const Memory& m = memory();
  const auto* begin = static_cast<const char*>(address);
  const auto offset = static_cast<std::size_t>(begin - arena);
  if (offset < kArena) return offset >= kDeviceArena;
  auto found = m.registered.upper_bound(begin);
  if (found == m.registered.begin()) return false;
  --found;
  return begin + bytes <= found->first + found->second;
}

bool register_pinned_memory(void* address, std::size_t bytes) {
  if (is_pinned_memory(address, 1)) return false;
  memory().registered[static_cast<const char*>(address)] = bytes;
  return true;
}

std::size_t unregister_pinned_memory(void* address) {
  auto& registered = memory().registered;
  const auto it = registered.find(static_cast<const char*>(address));
  if (it == registered.end()) return 0;
  const std::size_t bytes = it->second;
  registered.erase(it);
  return bytes;
}

void record_access(const void* address, std::size_t bytes, bool is_write) {
  if (!is_in_arena(address) || bytes == 0) return;
  Memory& m = memory();
  const auto begin = static_cast<std::size_t>(static_cast<const char*>(address) - arena);
  if (!m.in_operation) {
    if (begin < kDeviceArena) report("the host %s %s", is_write ? "writes" : "reads", describe_address(begin).c_str());
    return;
  }
  if (m.context.newest_allocation > 0) check_age(begin, is_write);
  if (!settings().checks_races) return;
  const bool fits = m.context.stream <= kMaxStream && m.context.number <= kMaxNumber;
  const Epoch own = fits ? static_cast<Epoch>(m.context.stream << kNumberBits | m.context.number) : kNobody;
  for (std::size_t at = begin / kGranule * kGranule; at < begin + bytes; at += kGranule)
    check_granule(at, is_write, own);
}

}  // namespace mcpp::cuda_simulator
