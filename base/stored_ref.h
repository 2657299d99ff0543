// Parameter type for references that are stored after the call.
#pragma once
#include <functional>

namespace mcpp {

/// Parameter type for a reference that is stored as `const T&`. It rejects temporaries, which a `const T&` parameter
/// would accept and which would dangle after the call.
template <class T>
using StoredRef = std::reference_wrapper<const T>;

}  // namespace mcpp
