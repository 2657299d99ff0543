#include "tensor/cpu/simd/bf16_path.h"

#include <cpuid.h>

#include <dnnl.hpp>

#include "tensor/cpu/simd/amx.h"

namespace mcpp::kernel {

bool is_isa_available(dnnl::cpu_isa level) {
  const auto available = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(level);
  return (available & needed) == needed;
}

namespace {

bool is_amd() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAuthenticAmd = 0x68747541;  // first letters of "AuthenticAMD"
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == kAuthenticAmd;
}

}  // namespace

bool can_use(Bf16Path path) {
  switch (path) {
    case Bf16Path::Amx:
      return amx_available();
    case Bf16Path::Dots:
      return is_isa_available(dnnl::cpu_isa::avx512_core_bf16);
    case Bf16Path::Widen:
      return true;
  }
  return false;
}

Bf16Path best_bf16_path() {
  if (can_use(Bf16Path::Amx)) return Bf16Path::Amx;
  // Without tiles, Intel cores multiply no more bf16 than fp32 values per cycle; AMD cores multiply twice that number.
  if (can_use(Bf16Path::Dots) && is_amd()) return Bf16Path::Dots;
  return Bf16Path::Widen;
}

}  // namespace mcpp::kernel
