#include "tests/support/build.h"

#include "tensor/with_cuda.h"

namespace mcpp::test {

Path source_folder() {
  return MCPP_SOURCE_DIR;
}

Path binary_folder() {
  return MCPP_BINARY_DIR;
}

bool built_with_cuda() {
  return kWithCuda;
}

}  // namespace mcpp::test
