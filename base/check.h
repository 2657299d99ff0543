// Errors. Every failure that a user, a file, a driver or a peer can cause throws Error. It is not caught for recovery:
// main prints it once and returns its exit code.
#pragma once
#include <stdexcept>
#include <string>

#include "base/strings.h"

namespace mcpp {

/// Exit codes of the process. Scripts act on them, so their meaning never changes.
enum class ExitCode : int {
  Done = 0,
  Internal = 1,         ///< a bug, or a system failure without a more specific code
  BadInput = 2,         ///< configuration, data or files given by the user; a restart does not help
  OutOfMemory = 12,     ///< host or device memory
  TrainingFailed = 17,  ///< the loss or the gradient stayed non-finite
  PeerLost = 75,        ///< a rank died or is hung; restart from the last checkpoint
  Preempted = 85,       ///< stopped by a signal after saving; requeue
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error with `code` and a message that is the concatenation of `parts`.
template <class... Parts>
[[noreturn]] void fail(ExitCode code, const Parts&... parts) {
  throw Error(code, str(parts...));
}

/// Throws a BadInput error unless `condition` holds. The message names the file, line or key and what to do.
template <class... Parts>
void check_input(bool condition, const Parts&... parts) {
  if (!condition) fail(ExitCode::BadInput, parts...);
}

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);

}  // namespace mcpp

/// Throws an Internal error with the source position unless `condition` holds; for internal invariants. The message
/// parts are evaluated only on failure.
#define MCPP_CHECK(condition, ...)                                                                  \
  do {                                                                                              \
    if (!(condition)) ::mcpp::fail_check(__FILE__, __LINE__, #condition, ::mcpp::str(__VA_ARGS__)); \
  } while (false)
