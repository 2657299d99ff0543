// Build flag of the CUDA backend. Only for the sources that CMakeLists.txt names as choosing between backends; all
// other sources are compiled identically in both builds.
#pragma once

namespace mcpp {

inline constexpr bool kWithCuda = MCPP_WITH_CUDA;

}  // namespace mcpp
