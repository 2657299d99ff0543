#include "base/machine.h"

#include <sched.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <optional>

#include "base/check.h"
#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

/// Reads a system file, whose size cannot be queried; "" if it cannot be read.
std::string read_system_file(const Path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Parses the number at the start of `text`; nullopt for a word such as "max".
std::optional<i64> parse_leading_number(const std::string& text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  u64 number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return static_cast<i64>(std::min(number, static_cast<u64>(std::numeric_limits<i64>::max())));
}

/// Returns the number after `word` in lines of the form "word number"; 0 if missing.
i64 find_entry(const std::string& text, const std::string& word) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(word)) return parse_leading_number(line.substr(word.size())).value_or(0);
  }
  return 0;
}

/// Identifies a control group by its directory, which is the same under every mount point.
std::string cgroup_id(const Path& file) {
  struct stat info {};
  if (::stat(file.parent_path().c_str(), &info) != 0) return file.string();
  return str(info.st_dev, ":", info.st_ino);
}

/// Hierarchy of control groups of one version: nested directories with limit files.
struct Hierarchy {
  Path root;
  std::string limit, swap;  ///< file names
};

/// Adds the limits of the group at `path` and of all its ancestors.
void add_limits(const Hierarchy& hierarchy, const std::string& path, const MemoryLimit& host, i64 swap,
                std::vector<MemoryLimit>& limits) {
  Path group = Path(path).relative_path();
  for (bool is_root = false; !is_root; group = group.parent_path()) {
    is_root = group.empty();
    const Path file = hierarchy.root / group / hierarchy.limit;
    const std::optional<i64> bytes = parse_leading_number(read_system_file(file));
    if (!bytes || *bytes >= host.bytes) continue;
    const i64 usable_swap =
        hierarchy.swap.empty()
            ? swap
            : parse_leading_number(read_system_file(hierarchy.root / group / hierarchy.swap)).value_or(swap);
    limits.push_back({host.id + " " + cgroup_id(file), "the limit " + file.string(),
                      std::min(host.bytes, *bytes + std::min(swap, usable_swap))});
  }
}

/// Adds the address space limit of this process (ulimit -v).
void add_own_limit(const std::string& limits_text, const MemoryLimit& host, std::vector<MemoryLimit>& limits) {
  constexpr std::string_view kName = "Max address space";
  for (const std::string& line : split(limits_text, '\n')) {
    if (!line.starts_with(kName)) continue;
    const std::optional<i64> bytes = parse_leading_number(line.substr(kName.size()));
    if (bytes && *bytes < host.bytes)
      limits.push_back({host.id + " " + process_tag(), "the limit of its address space (ulimit -v)", *bytes});
  }
}

/// Returns true if the process is running. A zombie has ended: its parent may take seconds to reap it.
bool is_running(pid_t pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return false;
  const std::string text = read_system_file(str("/proc/", pid, "/stat"));
  const std::size_t state = text.rfind(')');  // after the name, which may contain anything: ") Z ..."
  return state == std::string::npos || text.compare(state, 3, ") Z") != 0;
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const Path& root) {
  const std::string memory = read_system_file(root / "proc/meminfo");
  const i64 swap = 1024 * find_entry(memory, "SwapTotal:");
  const MemoryLimit host{split(read_system_file(root / "proc/sys/kernel/random/boot_id") + "\n", '\n')[0],
                         "the host's memory", 1024 * find_entry(memory, "MemTotal:") + swap};
  if (host.bytes == swap) return {};
  std::vector<MemoryLimit> limits{host};
  add_own_limit(read_system_file(root / "proc/self/limits"), host, limits);
  const Path mounts = root / "sys/fs/cgroup";
  for (const std::string& line : split(read_system_file(root / "proc/self/cgroup"), '\n')) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0::"))
      add_limits({mounts, "memory.max", "memory.swap.max"}, path, host, swap, limits);
    else if (std::ranges::find(controllers, "memory") != controllers.end())
      add_limits({mounts / "memory", "memory.limit_in_bytes", ""}, path, host, swap, limits);
  }
  return limits;
}

double process_seconds() {
  // Reads field 22, the 20th after the name, which may contain anything.
  const std::string text = read_system_file("/proc/self/stat");
  const std::size_t name_end = text.rfind(") ");
  const std::vector<std::string> words =
      name_end == std::string::npos ? std::vector<std::string>{} : split(text.substr(name_end + 2), ' ');
  constexpr std::size_t kStart = 19;
  struct timespec now {};
  if (words.size() <= kStart || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double start_seconds = static_cast<double>(parse_leading_number(words[kStart]).value_or(0)) /
                               static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::max(0.0, static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - start_seconds);
}

i64 physical_memory() {
  return static_cast<i64>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void raise_open_file_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if refused, the later failure to open a file is reported
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string process_tag() {
  return str(host_name(), "-", ::getpid());
}

std::string random_id() {
  u64 random = 0;
  MCPP_CHECK_SYSTEM(::getrandom(&random, sizeof(random), 0) == sizeof(random),
                    "cannot get random bytes from the system");
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(random));
  return digits.data();
}

Path temporary_name(const Path& path) {
  return str(path.string(), ".tmp-", process_tag(), ".", random_id());
}

bool is_stale_tag(const std::string& tag) {
  const std::size_t dash = tag.rfind('-');
  if (dash == std::string::npos) return false;
  if (tag.substr(0, dash) != host_name()) return true;
  const auto pid = parse_number<pid_t>(std::string_view(tag).substr(dash + 1, tag.find('.', dash) - dash - 1));
  if (!pid || *pid <= 0) return false;
  return *pid == ::getpid() || !is_running(*pid);
}

namespace {

std::optional<int> parse_cpu(std::string_view text) {
  const std::optional<int> cpu = parse_number<int>(text);
  return cpu && *cpu >= 0 && *cpu < CPU_SETSIZE ? cpu : std::nullopt;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  std::vector<int> cpus;
  if (text.empty()) return cpus;
  for (const std::string& range : split(std::string(text), ',')) {
    const std::size_t dash = range.find('-');
    const std::optional<int> first = parse_cpu(std::string_view(range).substr(0, dash));
    const std::optional<int> last =
        dash == std::string::npos ? first : parse_cpu(std::string_view(range).substr(dash + 1));
    if (!first || !last || *first > *last) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> cpus_local_to_pci_device(std::string_view bus_id, const Path& root) {
  std::ifstream file(root / "sys/bus/pci/devices" / to_lower(bus_id) / "local_cpulist");
  std::string text;
  std::getline(file, text);
  return parse_cpu_list(text);
}

int num_usable_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return std::max(1, CPU_COUNT(&cpus));
}

bool set_cpu_affinity(const std::vector<int>& cpus) {
  cpu_set_t current, allowed;
  CPU_ZERO(&current);
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(current), &current) != 0) return false;
  for (const int cpu : cpus) {
    if (CPU_ISSET(cpu, &current)) CPU_SET(cpu, &allowed);
  }
  if (CPU_COUNT(&allowed) == 0 || CPU_EQUAL(&allowed, &current)) return false;
  return ::sched_setaffinity(0, sizeof(allowed), &allowed) == 0;
}

}  // namespace mcpp
