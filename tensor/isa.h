// Instruction set of the CPU kernels. Highway and oneDNN keep this choice as process-wide state, so main sets it once
// before the first op. The program has no other global state.
#pragma once
#include <array>
#include <string>

#include "base/fields.h"

namespace mcpp {

/// Instruction set level. Auto selects the best level supported by both the processor and the build.
enum class CpuIsa : u8 { Auto, Sse4, Avx2, Avx512 };
template <>
struct EnumNames<CpuIsa> {
  static constexpr std::array<std::string_view, 4> value{"auto", "sse4", "avx2", "avx512"};
};

/// Limits our kernels and oneDNN to `level`; Auto changes nothing. Every other level, including avx512, disables AMX
/// tiles and bf16 dot products. Call it once, before the first CpuDevice and the first op: oneDNN fixes its choice on
/// first use, and a late or second limit throws an Internal error without effect. Do not call hwy::SupportedTargets()
/// afterwards: in Highway 1.0 it re-enables the disabled targets.
void limit_cpu_isa(CpuIsa level);

/// Returns the level our kernels run at: "sse4", "avx2", "avx512", or Highway's name on other architectures.
std::string cpu_isa_name();

}  // namespace mcpp
