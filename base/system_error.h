// Failures of system calls that set errno. No other code converts errno to text (scripts/check_layers.sh).
#pragma once
#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// Returns the system's text of an errno: "No space left on device".
std::string system_reason(int error);

/// Throws a BadInput error with the message and the system's reason.
[[noreturn]] void fail_system(int error, const std::string& message);

/// Returns errno immediately after a failed call, or EIO if it is not set.
inline int last_system_error() {
  return errno != 0 ? errno : EIO;
}

/// Returns the errno of a write that returned `done`, or 0 if it wrote something. A write of 0 bytes means that the
/// disk is full.
inline int write_error(i64 done) {
  if (done > 0) return 0;
  return done < 0 ? last_system_error() : ENOSPC;
}

}  // namespace mcpp

/// Throws BadInput with the message parts and the system's reason unless `error`, an errno, is 0. `error` is evaluated
/// first, since evaluating the parts may change errno.
#define MCPP_CHECK_ERROR(error, ...)                                                \
  do {                                                                              \
    const int mcpp_error = (error);                                                 \
    if (mcpp_error != 0) ::mcpp::fail_system(mcpp_error, ::mcpp::str(__VA_ARGS__)); \
  } while (false)

/// Throws BadInput like MCPP_CHECK_ERROR, with the reason in errno, unless `condition` holds. `condition` tests the
/// result of a system call.
#define MCPP_CHECK_SYSTEM(condition, ...) MCPP_CHECK_ERROR((condition) ? 0 : ::mcpp::last_system_error(), __VA_ARGS__)
