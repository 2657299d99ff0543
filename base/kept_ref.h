// References that outlive the call they are given in.
#pragma once
#include <functional>

namespace mcpp {

/// The type of a parameter that is kept as a `const T&`. It takes whatever lives on, and no temporary, which a `const
/// T&` would take too and which would be gone after the call.
template <class T>
using KeptRef = std::reference_wrapper<const T>;

}  // namespace mcpp
