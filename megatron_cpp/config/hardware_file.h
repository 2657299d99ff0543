// Files that describe clusters to the planner: configs/hardware/*.toml.
#pragma once
#include <string>

#include "base/file.h"
#include "plan/cost/hardware.h"

namespace mcpp {

/// Reads TOML text with sections [device], [links] and [host]; `name` is the file name that messages show. Throws one
/// BadInput error that lists every problem: keys that are missing, unknown or refused, and rules between them.
Hardware parse_hardware(std::string_view toml, const std::string& name);

/// `name`: a file, or one of those in `folder` without its ending. BadInput, with those that there are, when it is
/// neither.
Hardware load_hardware(const std::string& name, const Path& folder);

/// As parse_hardware() reads it back.
std::string print_hardware(const Hardware& hardware);

}  // namespace mcpp
