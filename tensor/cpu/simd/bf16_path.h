// Selection of the bf16 GEMM implementation by processor features.
#pragma once
#include <dnnl.hpp>

#include "base/types.h"

namespace mcpp::kernel {

// Instruction sets available to oneDNN.

/// Returns true if the CPU supports the instruction sets of `level` and dnnl::set_max_cpu_isa allows them.
bool is_isa_available(dnnl::cpu_isa level);

enum class Bf16Path : u8 {
  Widen,  ///< converted to fp32 block by block: any CPU
  Dots,   ///< dot products of pairs: AVX512_BF16
  Amx,    ///< AMX tiles
};

/// Returns true if this CPU supports `path` under the current instruction set limit.
bool can_use(Bf16Path path);
/// Returns the fastest path supported by this CPU.
Bf16Path best_bf16_path();

}  // namespace mcpp::kernel
