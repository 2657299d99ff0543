#include "base/program/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "base/check.h"

namespace mcpp {

void open_closed_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR);  // the lowest number that is free
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) ::close(descriptor);
}

void check_standard_output() {
  std::fflush(stdout);
  if (std::ferror(stdout) == 0) return;
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  const bool is_reader_gone = ::poll(&output, 1, 0) > 0 && (output.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
  check_input(is_reader_gone, "standard output: part of the output could not be written; is the disk full?");
}

}  // namespace mcpp
