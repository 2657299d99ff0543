#include "base/program/standard_output.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "base/check.h"

namespace mcpp {

void check_standard_output() {
  std::fflush(stdout);
  if (std::ferror(stdout) == 0) return;
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  const bool nobody_reads = ::poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
  check_input(nobody_reads, "standard output: not all could be written; is its disk full?");
}

}  // namespace mcpp
