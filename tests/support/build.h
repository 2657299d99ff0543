// What the build knows and tests need. In one source file alone, so that all others compile to the same objects in
// every build folder.
#pragma once
#include "base/file.h"

namespace mcpp::test {

Path source_folder();  ///< the repository
Path binary_folder();  ///< where the programs are
bool built_with_cuda();

}  // namespace mcpp::test
