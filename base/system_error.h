// Failures of system calls, which say why in errno. No other code turns errno into words (scripts/check_layers.sh).
#pragma once
#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// "No space left on device": what the system calls this number of errno.
std::string system_reason(int error);

/// Throws a BadInput error: the message, and the system's reason.
[[noreturn]] void fail_system(int error, const std::string& message);

/// errno right after a call that failed, EIO where that did not set it.
inline int call_error() {
  return errno != 0 ? errno : EIO;
}

/// Of a write that returned `done`: 0 when it wrote something. One that writes nothing has met a full disk.
inline int error_of_write(i64 done) {
  if (done > 0) return 0;
  return done < 0 ? call_error() : ENOSPC;
}

}  // namespace mcpp

/// Throws BadInput with the message parts and the system's reason unless `error`, a number of errno, is 0. It is
/// evaluated first: what the parts do on the way to a message may change errno.
#define MCPP_CHECK_ERROR(error, ...)                                                \
  do {                                                                              \
    const int mcpp_error = (error);                                                 \
    if (mcpp_error != 0) ::mcpp::fail_system(mcpp_error, ::mcpp::str(__VA_ARGS__)); \
  } while (false)

/// The same unless `condition`, which looks at what a system call returned, holds; the reason is in errno.
#define MCPP_CHECK_SYSTEM(condition, ...) MCPP_CHECK_ERROR((condition) ? 0 : ::mcpp::call_error(), __VA_ARGS__)
