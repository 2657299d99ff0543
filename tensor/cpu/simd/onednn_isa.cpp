#include "tensor/cpu/simd/onednn_isa.h"

namespace mcpp::kernel {

bool isa_reaches(dnnl::cpu_isa level) {
  const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(level);
  return (have & needed) == needed;
}

}  // namespace mcpp::kernel
