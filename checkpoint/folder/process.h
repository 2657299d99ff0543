// Who wrote a file: host and process, for names of temporary entries and for locks.
#pragma once
#include <string>

#include "base/types.h"

namespace mcpp {

std::string host_name();

/// "<host>-<pid>" of this process.
std::string process_tag();

/// Whether the process of a tag has certainly ended or is this one. A bare pid, with or without ".<digits>" as
/// AtomicFile adds them, is one of this host. Processes of other hosts cannot be seen and count as ended.
bool is_stale_tag(const std::string& tag);

}  // namespace mcpp
