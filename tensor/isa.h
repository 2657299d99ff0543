// Which instructions the CPU kernels use. Highway and oneDNN keep this choice as state of the whole process, so it is
// made once, in main, before the first op; nothing else of the program is process-wide.
#pragma once
#include <array>
#include <string>

#include "base/fields.h"

namespace mcpp {

/// Auto: the best that both the processor and the build have.
enum class CpuIsa : u8 { Auto, Sse4, Avx2, Avx512 };
template <>
struct EnumNames<CpuIsa> {
  static constexpr std::array<std::string_view, 4> value{"auto", "sse4", "avx2", "avx512"};
};

/// Uses nothing above `level`, in our kernels and in oneDNN; Auto changes nothing. Every other level, avx512 too, rules
/// out AMX tiles and bf16 dot products. To be called once, before the first CpuDevice and the first op: oneDNN settles
/// its choice when it is first asked for it, and a later limit, or a second one, is an Error Internal that changes
/// nothing. Afterwards nobody may call hwy::SupportedTargets(): in Highway 1.0 it brings the ruled out targets back.
void limit_cpu_isa(CpuIsa level);

/// The level our kernels run at now: "sse4", "avx2", "avx512", or Highway's name on other architectures.
std::string cpu_isa_name();

}  // namespace mcpp
