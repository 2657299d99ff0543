// What the build knows and tests need. In one source file alone, so that all others compile to the same objects in
// every build folder.
#pragma once
#include "base/file.h"

namespace mcpp::test {

Path source_folder();  ///< the repository; environment variable MCPP_SOURCE_DIR where it has moved
Path golden_folder();  ///< what others computed: tests/golden; MCPP_GOLDEN_DIR where another set of the same form lies
Path binary_folder();  ///< where the programs are; MCPP_BINARY_DIR
bool built_with_cuda();

}  // namespace mcpp::test
