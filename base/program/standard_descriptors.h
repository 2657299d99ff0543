// Descriptors 0, 1 and 2: standard input, output and error.
#pragma once

namespace mcpp {

/// Opens /dev/null for each standard descriptor that the caller has closed (`>&-`). Otherwise a file that is opened
/// later takes its number, and what is printed is written into that file. Call it before anything else is opened.
void open_closed_standard_descriptors();

}  // namespace mcpp
