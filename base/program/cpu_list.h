// CPUs by their numbers, and those that are near a device.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Of a list as the system writes it, such as "0-3,8"; none when it is malformed.
std::vector<int> parse_cpu_list(std::string_view text);

/// Those of the NUMA node that a PCI device, "0000:3B:00.0", is attached to; none where the system does not say.
/// `root`: where /sys is, for tests.
std::vector<int> cpus_near_pci_device(std::string bus_id, const Path& root = "/");

/// How many this thread may run on; 1 where the system does not say.
int usable_cpus();

/// Keeps this thread, and those that it starts from now on, to those of `cpus` that it may use. False, and nothing is
/// changed, where that is none, or all that it may use anyway.
bool keep_to_cpus(const std::vector<int>& cpus);

}  // namespace mcpp
