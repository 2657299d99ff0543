#include "tensor/isa.h"

#include <gtest/gtest.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/tensor/cpu/isa_test.cpp"
#include <cstdlib>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "tensor/cpu/gemm/gemm.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

// Minimal kernel that is compiled for every target.
int64_t compiled_for() {
  return HWY_TARGET;
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {
namespace {

HWY_EXPORT(compiled_for);

/// Returns true if a kernel runs at `target` and bf16 GEMMs use no instructions beyond AVX-512.
bool is_at(int64_t target, const std::string& name) {
  return HWY_DYNAMIC_DISPATCH(compiled_for)() == target && cpu_isa_name() == name &&
         kernel::best_bf16_path() == kernel::Bf16Path::Widen && !kernel::can_use(kernel::Bf16Path::Amx) &&
         !kernel::can_use(kernel::Bf16Path::Dots);
}

// A limit holds for the rest of the process, so each one is tested in its own process.
[[noreturn]] void limit_and_exit(CpuIsa level, int64_t target, const std::string& name) {
  limit_cpu_isa(level);
  const bool first = is_at(target, name);  // the second check shows whether the first one had side effects
  std::exit(first && is_at(target, name) ? 0 : 1);
}

TEST(CpuIsaDeathTest, LimitHoldsForRestOfProcess) {
#if HWY_ARCH_X86
  GTEST_FLAG_SET(death_test_style,
                 "threadsafe");  // a fresh process, in which oneDNN and Highway have made no choice yet
  EXPECT_EXIT(limit_and_exit(CpuIsa::Sse4, HWY_SSE4, "sse4"), testing::ExitedWithCode(0), "");
  if (hwy::SupportedTargets() & HWY_AVX2) {
    EXPECT_EXIT(limit_and_exit(CpuIsa::Avx2, HWY_AVX2, "avx2"), testing::ExitedWithCode(0), "");
  }
  if (hwy::SupportedTargets() & HWY_AVX3) {
    EXPECT_EXIT(limit_and_exit(CpuIsa::Avx512, HWY_AVX3, "avx512"), testing::ExitedWithCode(0), "");
  }
#else
  GTEST_SKIP() << "the levels are those of x86";
#endif
}

TEST(CpuIsaDeathTest, RejectsLateLimitWithoutSideEffects) {
#if HWY_ARCH_X86
  const auto limit_late = [] {
    const bool amx = kernel::can_use(kernel::Bf16Path::Amx);  // initializes oneDNN
    const std::string before = cpu_isa_name();
    try {
      limit_cpu_isa(CpuIsa::Sse4);
    } catch (const Error& error) {
      const bool same = cpu_isa_name() == before && kernel::can_use(kernel::Bf16Path::Amx) == amx;
      std::exit(error.code() == ExitCode::Internal && same ? 0 : 1);
    }
    std::exit(2);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(limit_late(), testing::ExitedWithCode(0), "");
#else
  GTEST_SKIP() << "the levels are those of x86";
#endif
}

TEST(CpuIsaTest, AutoChangesNothing) {
  const std::string name = cpu_isa_name();
  limit_cpu_isa(CpuIsa::Auto);
  EXPECT_EQ(cpu_isa_name(), name);
  EXPECT_FALSE(name.empty());
}

}  // namespace
}  // namespace mcpp
#endif  // HWY_ONCE
