#include "base/system_error.h"

#include <system_error>

namespace mcpp {

std::string system_reason(int error) {
  return std::generic_category().message(error);  // thread-safe, unlike strerror()
}

void fail_system(int error, const std::string& message) {
  fail(ExitCode::BadInput, message, ": ", system_reason(error));
}

}  // namespace mcpp
