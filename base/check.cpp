#include "base/check.h"

namespace mcpp {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  fail(ExitCode::Internal, file, ":", line, ": check '", condition, "' failed", message.empty() ? "" : ": ", message);
}

}  // namespace mcpp
