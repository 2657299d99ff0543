#include "base/program/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace mcpp {

void open_closed_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = ::open("/dev/null", O_RDWR);  // the lowest number that is free
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) ::close(descriptor);
}

}  // namespace mcpp
