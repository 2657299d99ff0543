// Error check for commands whose only result is their standard output.
#pragma once

namespace mcpp {

/// Throws BadInput if part of the output could not be written, as on a full disk. A reader that closed the pipe, such
/// as `head`, is not an error.
void check_standard_output();

}  // namespace mcpp
