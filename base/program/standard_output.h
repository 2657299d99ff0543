// What a command prints, where that is all that it makes.
#pragma once

namespace mcpp {

/// BadInput when a part of what was printed did not get through, as on a full disk. A reader that has enough, such as
/// `head`, or none, is no error.
void check_standard_output();

}  // namespace mcpp
