// Version of the program and of the libraries that it uses.
#pragma once
#include <string>
#include <string_view>

namespace mcpp {

/// Returns the Git commit that the program was built from, followed by ", modified" if tracked files differed from it;
/// "" if it was built without Git. cmake/Commit.cmake writes the definition.
std::string_view build_commit();

/// Returns the version and the commit in one line, then the compiler, the build type, and the versions of the libraries
/// in use, one per line.
std::string version_text();

}  // namespace mcpp
