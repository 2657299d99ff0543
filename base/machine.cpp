#include "base/machine.h"

#include <unistd.h>

namespace mcpp {

i64 physical_memory() {
  return static_cast<i64>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

}  // namespace mcpp
