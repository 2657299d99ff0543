// List of the classes and functions to which pickles in checkpoints of PyTorch and Megatron-LM may refer.
#pragma once
#include <string_view>

namespace mcpp {

/// Returns true if the list has this class or function.
bool is_known_pickle_class(std::string_view module, std::string_view name);

}  // namespace mcpp
