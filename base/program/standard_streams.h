// Standard input, output and error of the program.
#pragma once

namespace mcpp {

/// Opens /dev/null for each standard descriptor that the caller has closed (`>&-`). Otherwise a file that is opened
/// later takes its number, and what is printed is written into that file. Call it before anything else is opened.
void open_closed_standard_descriptors();

/// Throws BadInput if part of the output could not be written, as on a full disk. A reader that closed the pipe, such
/// as `head`, is not an error.
void check_standard_output();

}  // namespace mcpp
