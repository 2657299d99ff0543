#include "base/program/cpu_list.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <optional>

#include "base/strings.h"

namespace mcpp {
namespace {

std::optional<int> cpu_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= CPU_SETSIZE) return {};
  return value;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  std::vector<int> cpus;
  if (text.empty()) return cpus;
  for (const std::string& range : split(std::string(text), ',')) {
    const std::size_t dash = range.find('-');
    const std::optional<int> first = cpu_number(std::string_view(range).substr(0, dash));
    const std::optional<int> last =
        dash == std::string::npos ? first : cpu_number(std::string_view(range).substr(dash + 1));
    if (!first || !last || *first > *last) return {};
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> cpus_local_to_pci_device(std::string bus_id, const Path& root) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(root / "sys/bus/pci/devices" / bus_id / "local_cpulist");
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
  cpu_set_t now, kept;
  CPU_ZERO(&now);
  CPU_ZERO(&kept);
  if (::sched_getaffinity(0, sizeof(now), &now) != 0) return false;
  for (const int cpu : cpus) {
    if (CPU_ISSET(cpu, &now)) CPU_SET(cpu, &kept);
  }
  if (CPU_COUNT(&kept) == 0 || CPU_EQUAL(&kept, &now)) return false;
  return ::sched_setaffinity(0, sizeof(kept), &kept) == 0;
}

}  // namespace mcpp
