// Progress display for reading a checkpoint.
#pragma once
#include <string>

#include "base/log.h"
#include "checkpoint/load/reader.h"

namespace mcpp {

/// Returns a listener that shows the progress of a reader on the terminal, under the name `what`.
CheckpointReader::ReadListener make_progress_listener(const Log& log, std::string what);

}  // namespace mcpp
