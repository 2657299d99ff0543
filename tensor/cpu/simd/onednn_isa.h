// What oneDNN may use of the processor.
#pragma once
#include <dnnl.hpp>

namespace mcpp::kernel {

/// Whether oneDNN may use the instruction sets of `level`: the CPU has them and dnnl::set_max_cpu_isa allows them.
bool isa_reaches(dnnl::cpu_isa level);

}  // namespace mcpp::kernel
