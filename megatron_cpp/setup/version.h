#pragma once
#include <string>

namespace mcpp {

/// Version of the program, compiler, build type, and versions of the libraries it runs with.
std::string version_text();

}  // namespace mcpp
