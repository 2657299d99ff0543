#include "tensor/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/isa.cpp"
#include <dnnl.hpp>

#include "base/check.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

int64_t target() {
  return HWY_TARGET;
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {
namespace {

HWY_EXPORT(target);

constexpr i64 kAboveAvx512 = HWY_AVX3_DL, kAboveAvx2 = kAboveAvx512 | HWY_AVX3, kAboveSse4 = kAboveAvx2 | HWY_AVX2;

void limit(i64 disabled_targets, dnnl::cpu_isa highest) {
  MCPP_CHECK(dnnl::set_max_cpu_isa(highest) == dnnl::status::success,
             "instruction levels must be limited once, before oneDNN is used");
  hwy::DisableTargets(disabled_targets);
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
  // Determined by running a kernel: hwy::SupportedTargets() would undo the limit.
  const i64 now = HWY_DYNAMIC_DISPATCH(target)();
  if (now == HWY_SSE4) return "sse4";
  if (now == HWY_AVX2) return "avx2";
  if (now == HWY_AVX3) return "avx512";
  return hwy::TargetName(now);
}

}  // namespace mcpp
#endif  // HWY_ONCE
