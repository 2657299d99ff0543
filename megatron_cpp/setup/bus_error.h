// Handler for SIGBUS, which the system raises when a mapped file was truncated or its disk fails.
#pragma once

namespace mcpp {

/// Installs the handler. Such an access then prints a message naming the file on standard error and exits with the code
/// of BadInput instead of dumping core. Call it only from main.
void report_bus_errors();

}  // namespace mcpp
