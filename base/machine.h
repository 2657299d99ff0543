// What the machine has that a process runs on, and which processes run there: host and number, for names of temporary
// entries and for locks.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Bytes of memory, whoever uses them.
i64 physical_memory();

/// What bounds the memory of this process, together with all others that show a limit of this id.
struct MemoryLimit {
  std::string id;    ///< the same for no other limit anywhere
  std::string name;  ///< as messages call it: "the machine's memory", "the limit /sys/fs/cgroup/a/memory.max"
  i64 bytes = 0;     ///< with the swap space that may be used beside it
};
/// Of the machine, of the process's address space, and of the control groups that it is in, of version 1 or 2, outer
/// ones too as far as they can be seen; those that allow more than the machine has are left out. `root`: where /proc
/// and /sys are, for tests.
std::vector<MemoryLimit> memory_limits(const Path& root = "/");

/// Seconds since this process was started, programs that it ran before this one included; 0 where that cannot be told.
double process_seconds();

/// Lets this process open as many files at once as the system permits it: a checkpoint of many ranks has many.
void allow_many_open_files();

std::string host_name();

/// "<host>-<pid>" of this process.
std::string process_tag();

/// "<path>.tmp-<host>-<pid>.<random>": the name of a file while it is written, as no other thread, process or host
/// makes it. What follows ".tmp-" is a tag.
Path temporary_name(const Path& path);

/// Whether the process of a tag, with or without ".<random>", has certainly ended or is this one. Processes of other
/// hosts cannot be seen and count as ended.
bool is_stale_tag(const std::string& tag);

}  // namespace mcpp
