#pragma once
#include <string>

namespace mcpp {

/// Returns the version of the program, compiler, build type, and the versions of the libraries in use.
std::string version_text();

}  // namespace mcpp
