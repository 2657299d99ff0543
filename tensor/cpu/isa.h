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

/// Uses nothing above `level`, in our kernels and in oneDNN; Auto changes nothing. A limit can only be lowered later,
/// and oneDNN refuses one after its first use: Error Internal.
void limit_cpu_isa(CpuIsa level);

/// The level our kernels run at now: "sse4", "avx2", "avx512", or Highway's name on other architectures.
std::string cpu_isa_name();

/// No limit was set: instructions beyond the levels above (AMX tiles, bf16 dot products) may be used where they exist.
bool cpu_isa_is_unlimited();

}  // namespace mcpp
