// Instruction sets available to oneDNN.
#pragma once
#include <dnnl.hpp>

namespace mcpp::kernel {

/// Returns true if the CPU supports the instruction sets of `level` and dnnl::set_max_cpu_isa allows them.
bool isa_reaches(dnnl::cpu_isa level);

}  // namespace mcpp::kernel
