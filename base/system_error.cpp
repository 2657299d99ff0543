#include "base/system_error.h"

#include <system_error>

namespace mcpp {

std::string system_reason(int error) {
  return std::generic_category().message(error);  // unlike strerror(), for any thread
}

void fail_system(int error, const std::string& message) {
  fail(ExitCode::BadInput, message, ": ", system_reason(error));
}

}  // namespace mcpp
