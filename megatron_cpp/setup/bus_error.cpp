#include "megatron_cpp/setup/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <string_view>

#include "base/check.h"

namespace mcpp {
namespace {

// Signal handlers must not allocate or lock: only system calls and stack memory are used.

void write_stderr(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

/// Returns true if `address` is in the mapping of this line: "7f00-7fff r--s 00000000 fe:00 1234 /path".
bool contains(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const char* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, begin, 16);
  if (first.ptr == last || *first.ptr != '-') return false;
  std::from_chars(first.ptr + 1, last, end, 16);
  return begin <= address && address < end;
}

/// Calls f with each line of /proc/self/maps, truncated if too long, until it returns true.
template <class F>
void for_each_mapping(F&& f) {
  const int file = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::array<char, 4096> line{};
  std::size_t length = 0;
  for (char c = 0; ::read(file, &c, 1) == 1;) {
    if (c != '\n') {
      if (length < line.size()) line[length++] = c;
      continue;
    }
    if (f(std::string_view(line.data(), length))) break;
    length = 0;
  }
  ::close(file);
}

void handle(int, siginfo_t* info, void*) {
  write_stderr("megatron_cpp: error: cannot read ");
  for_each_mapping([&](std::string_view line) {
    if (!contains(line, reinterpret_cast<std::uintptr_t>(info->si_addr))) return false;
    const std::size_t path = line.find_first_of("/[");
    write_stderr(path == std::string_view::npos ? "memory that belongs to no file" : line.substr(path));
    return true;
  });
  write_stderr(": it was truncated while in use, or its disk fails or is full\n");
  ::_exit(static_cast<int>(ExitCode::BadInput));
}

}  // namespace

void report_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace mcpp
