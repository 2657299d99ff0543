// Golden datasets, scratch folders and error messages, shared by the tests of data.
#pragma once
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::test {

inline Path golden_data() {
  return golden_folder() / "data";
}

}  // namespace mcpp::test
