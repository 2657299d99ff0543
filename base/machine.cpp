#include "base/machine.h"

#include <sys/resource.h>
#include <unistd.h>

namespace mcpp {

i64 physical_memory() {
  return static_cast<i64>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

void allow_many_open_files() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // where that is refused, what cannot be opened is told then
}

}  // namespace mcpp
