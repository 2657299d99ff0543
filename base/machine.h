// Properties of the host a process runs on. Identifies processes by host and pid, for names of temporary entries and
// for locks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Returns the total bytes of physical memory.
i64 physical_memory();

/// Memory limit of this process, shared with all processes that report a limit with this id.
struct MemoryLimit {
  std::string id;    ///< globally unique
  std::string name;  ///< name in messages: "the host's memory", "the limit /sys/fs/cgroup/a/memory.max"
  i64 bytes = 0;     ///< limit, including usable swap space
};
/// Returns the memory limits of the host, of the process's address space, and of its control groups (version 1 or 2,
/// including visible ancestors). Limits above the host's memory are omitted. `root` contains /proc and /sys; tests
/// override it.
std::vector<MemoryLimit> memory_limits(const Path& root = "/");

/// Returns the seconds since this process was started, including programs it ran before exec; 0 if unknown.
double process_seconds();

/// Returns the steady clock of this process, in seconds; only differences are meaningful.
double steady_seconds();

/// Raises this process's limit of open files to the system maximum, because checkpoints of many ranks consist of many
/// files.
void raise_open_file_limit();

std::string host_name();

/// Returns "<host>-<pid>" of this process.
std::string process_tag();

/// Returns 64 random bits of the system as 16 hexadecimal digits.
std::string random_id();

/// Returns "<path>.tmp-<host>-<pid>.<random>", a name for a file being written that is unique across threads, processes
/// and hosts. The part after ".tmp-" is a tag.
Path temporary_name(const Path& path);

/// Returns true if the process of a tag, with or without ".<random>", has ended or is this one. Processes of other
/// hosts cannot be checked and are assumed to have ended.
bool is_stale_tag(const std::string& tag);

// CPU lists and affinity of the calling thread.

/// Parses a CPU list in the kernel's format, such as "0-3,8". Returns an empty list if it is malformed.
std::vector<int> parse_cpu_list(std::string_view text);

/// Returns the CPUs of the NUMA node of a PCI device, "0000:3B:00.0"; empty if unknown. `root` contains /sys; tests
/// override it.
std::vector<int> cpus_local_to_pci_device(std::string_view bus_id, const Path& root = "/");

/// Returns the number of CPUs this thread may run on; 1 if unknown.
int num_usable_cpus();

/// Restricts this thread, and threads that it starts later, to the allowed CPUs among `cpus`. Returns false without
/// effect if `cpus` contains none or all of the allowed CPUs.
bool set_cpu_affinity(const std::vector<int>& cpus);

}  // namespace mcpp
