// What the system does to a program that reads a mapped file which became shorter, or whose disk fails: SIGBUS.
#pragma once

namespace mcpp {

/// From now on such an access ends the process with the exit code of BadInput and a message that names the file, on
/// standard error, instead of a core dump. Only main calls it.
void report_bus_errors();

}  // namespace mcpp
