#include "tensor/cpu/isa.h"

#include <hwy/highway.h>

#include <dnnl.hpp>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr i64 kAboveAvx512 = HWY_AVX3_DL, kAboveAvx2 = kAboveAvx512 | HWY_AVX3, kAboveSse4 = kAboveAvx2 | HWY_AVX2;

void limit(i64 disabled_targets, dnnl::cpu_isa highest) {
  hwy::DisableTargets(disabled_targets);
  MCPP_CHECK(dnnl::set_max_cpu_isa(highest) == dnnl::status::success,
             "instruction levels must be limited before oneDNN is used");
}

}  // namespace

void limit_cpu_isa(CpuIsa level) {
  switch (level) {
    case CpuIsa::Auto:
      return;
    case CpuIsa::Sse4:
      return limit(kAboveSse4, dnnl::cpu_isa::sse41);
    case CpuIsa::Avx2:
      return limit(kAboveAvx2, dnnl::cpu_isa::avx2);
    case CpuIsa::Avx512:
      return limit(kAboveAvx512, dnnl::cpu_isa::avx512_core);
  }
}

std::string cpu_isa_name() {
  const i64 usable = hwy::SupportedTargets() & HWY_TARGETS;
  const i64 best = usable == 0 ? HWY_STATIC_TARGET : usable & -usable;  // better targets have lower bits
  if (best == HWY_SSE4) return "sse4";
  if (best == HWY_AVX2) return "avx2";
  if (best == HWY_AVX3) return "avx512";
  return hwy::TargetName(best);
}

bool cpu_isa_is_unlimited() {
  // Processors with AMX have this target, which none of our kernels is compiled for; every limit disables it.
  return (hwy::SupportedTargets() & HWY_AVX3_DL) != 0;
}

}  // namespace mcpp
