// Properties of the build that tests need. One source file contains them, so that all other sources compile to
// identical objects in every build folder.
#pragma once
#include "base/file.h"

namespace mcpp::test {

Path source_folder();  ///< the repository; MCPP_SOURCE_DIR if it has moved
Path golden_folder();  ///< expected values in tests/golden; MCPP_GOLDEN_DIR for a different set in the same format
Path binary_folder();  ///< folder of the programs; MCPP_BINARY_DIR if it has moved
bool built_with_cuda();

}  // namespace mcpp::test
