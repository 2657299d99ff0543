// CPU lists and affinity of the calling thread.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Parses a CPU list in the kernel's format, such as "0-3,8". Returns an empty list if it is malformed.
std::vector<int> parse_cpu_list(std::string_view text);

/// Returns the CPUs of the NUMA node of a PCI device, "0000:3B:00.0"; empty if unknown. `root` contains /sys; tests
/// override it.
std::vector<int> cpus_local_to_pci_device(std::string bus_id, const Path& root = "/");

/// Returns the number of CPUs this thread may run on; 1 if unknown.
int num_usable_cpus();

/// Restricts this thread, and the threads it starts later, to those of `cpus` that it may use. Returns false and
/// changes nothing if that is none of them or all CPUs the thread may use.
bool set_cpu_affinity(const std::vector<int>& cpus);

}  // namespace mcpp
