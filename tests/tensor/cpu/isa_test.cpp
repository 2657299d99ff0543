#include "tensor/cpu/isa.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdlib>

namespace mcpp {
namespace {

// A limit holds for the rest of the process, so each is tried in one of its own.
[[noreturn]] void limit_and_report(CpuIsa level, const std::string& expected) {
  limit_cpu_isa(level);
  std::exit(cpu_isa_name() == expected && !cpu_isa_is_unlimited() ? 0 : 1);
}

TEST(CpuIsaDeathTest, LimitsAreKept) {
#if HWY_ARCH_X86
  EXPECT_EXIT(limit_and_report(CpuIsa::Sse4, "sse4"), testing::ExitedWithCode(0), "");
  if (hwy::SupportedTargets() & HWY_AVX2) {
    EXPECT_EXIT(limit_and_report(CpuIsa::Avx2, "avx2"), testing::ExitedWithCode(0), "");
  }
  if (hwy::SupportedTargets() & HWY_AVX3) {
    EXPECT_EXIT(limit_and_report(CpuIsa::Avx512, "avx512"), testing::ExitedWithCode(0), "");
  }
#else
  GTEST_SKIP() << "the levels are those of x86";
#endif
}

TEST(CpuIsa, AutoChangesNothing) {
  const std::string name = cpu_isa_name();
  limit_cpu_isa(CpuIsa::Auto);
  EXPECT_EQ(cpu_isa_name(), name);
  EXPECT_FALSE(name.empty());
}

}  // namespace
}  // namespace mcpp
