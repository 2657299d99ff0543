// Standard input, output and error of the program.
#pragma once

namespace mcpp {

/// Opens /dev/null for each standard descriptor that the caller has closed (`>&-`). Otherwise a file that is opened
/// later may receive that descriptor, and output would be written into it. Call it before opening files.
void open_closed_standard_descriptors();

/// Throws BadInput if part of the output could not be written, as on a full disk. A reader that closed the pipe, such
/// as `head`, is not an error.
void check_standard_output();

}  // namespace mcpp
