// Whether the program has the CUDA backend. Only for the sources that CMakeLists.txt names as choosing between
// backends: all others are the same in either build.
#pragma once

namespace mcpp {

inline constexpr bool kWithCuda = MCPP_WITH_CUDA;

}  // namespace mcpp
