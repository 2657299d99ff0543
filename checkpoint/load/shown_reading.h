// What a terminal shows of a checkpoint that is read.
#pragma once
#include <string>

#include "base/log.h"
#include "checkpoint/load/reader.h"

namespace mcpp {

/// For a reader that the log outlives: shows how far it is, under the name `what`.
CheckpointReader::ReadListener shown_reading(const Log& log, std::string what);

}  // namespace mcpp
