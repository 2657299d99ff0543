#include "tensor/cpu/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "base/integer_math.h"
#include "base/machine.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr const char* kFileName = "megatron_cpp";
constexpr i64 kPage = 4096;

i64 host_memory_bytes() {
  return round_up(physical_memory(), kHugePage);
}

/// Returns true if a path in /proc refers to an arena's file. Opening any other file could have side effects.
bool is_arena(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length))
                           .starts_with(std::string("/memfd:") + kFileName);
}

}  // namespace

ArenaMapping::ArenaMapping(int fd, i64 bytes) noexcept : bytes_(bytes) {
  const auto size = static_cast<std::size_t>(bytes), reserved_bytes = size + kHugePage;
  void* reserved = ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  auto* begin = static_cast<std::byte*>(reserved);
  std::byte* aligned = begin + (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (::mmap(aligned, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED) {
    ::munmap(reserved, reserved_bytes);
    return;
  }
  if (aligned > begin) ::munmap(begin, static_cast<std::size_t>(aligned - begin));
  if (aligned + size < begin + reserved_bytes)
    ::munmap(aligned + size, static_cast<std::size_t>(begin + reserved_bytes - aligned) - size);
  ::madvise(aligned, size, MADV_HUGEPAGE);  // only a hint: fewer page faults
  base_ = aligned;
}

ArenaMapping::~ArenaMapping() {
  if (base_) ::munmap(base_, static_cast<std::size_t>(bytes_));
}

std::unique_ptr<SharedArena> SharedArena::create() {
  return create("tensors", host_memory_bytes());
}

std::unique_ptr<SharedArena> SharedArena::create(std::string_view what, i64 max_bytes) {
  ArenaName name{.bytes = round_up(max_bytes, kHugePage), .owner = ::getpid()};
  if (::getrandom(&name.id, sizeof(name.id), 0) != sizeof(name.id)) return nullptr;
  name.id |= 1;  // never 0
  name.fd = ::memfd_create(str(kFileName, "_", what).c_str(), MFD_CLOEXEC);
  if (name.fd < 0) return nullptr;
  std::unique_ptr<SharedArena> arena(new SharedArena(name));
  return arena->mapping_.base() ? std::move(arena) : nullptr;
}

SharedArena::SharedArena(const ArenaName& name)
    : name_(name), mapping_(::ftruncate(name.fd, name.bytes) == 0 ? name.fd : -1, name.bytes) {
  if (!mapping_.base()) return;
  std::memcpy(mapping_.base(), &name_.id, sizeof(name_.id));  // identifies the arena to map_arena()
  free_[kPage] = name_.bytes - kPage;
}

SharedArena::~SharedArena() {
  ::close(name_.fd);
}

void* SharedArena::allocate(i64 bytes) {
  const i64 alignment = bytes >= kHugePage ? kHugePage : kPage, size = round_up(bytes, kPage);
  for (auto space = free_.begin(); space != free_.end(); ++space) {
    const i64 end = space->first + space->second, offset = round_up(space->first, alignment);
    if (offset + size > end) continue;
    if (offset > space->first)
      space->second = offset - space->first;
    else
      free_.erase(space);
    if (offset + size < end) free_[offset + size] = end - offset - size;
    used_[offset] = size;
    return mapping_.base() + offset;
  }
  return nullptr;
}

void SharedArena::free(void* block) noexcept {
  auto node = used_.extract(offset_of(block));
  ::fallocate(name_.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, node.key(), node.mapped());
  const auto next = free_.upper_bound(node.key());
  if (next != free_.end() && next->first == node.key() + node.mapped()) {
    node.mapped() += next->second;
    free_.erase(next);
  }
  const auto after = free_.upper_bound(node.key());
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == node.key())
    std::prev(after)->second += node.mapped();
  else
    free_.insert(std::move(node));
}

std::unique_ptr<ArenaMapping> map_arena(const ArenaName& name) {
  const std::string path = str("/proc/", name.owner, "/fd/", name.fd);
  if (!is_arena(path)) return nullptr;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  auto mapping = std::make_unique<ArenaMapping>(fd, name.bytes);
  ::close(fd);
  // A process in a different container may have the same pid.
  if (!mapping->base() || std::memcmp(mapping->base(), &name.id, sizeof(name.id)) != 0) return nullptr;
  return mapping;
}

}  // namespace mcpp
